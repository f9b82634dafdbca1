// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles: a thread asks the kernel for the one of a path, and all lanes of the path use it.

use std::sync::mpsc::{TryRecvError, sync_channel};

use super::{Datagrams, Stage};
use crate::provider::{Path, Provider};
use crate::unmaps::without_signals;

impl<P: Provider> Datagrams<P> {
    /// Gets the address handle of a lane's peer: a kept one, or a new one by a thread.
    pub(super) fn find(&mut self, name: u64, path: Path) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        if let Some(ah) = self.handles.get(&path) {
            lane.stage = Stage::Ready(ah.clone());
            return self.changed.add(name, lane);
        }
        lane.stage = Stage::Finding;
        if self.finding.contains_key(&path) {
            return;
        }
        let domain = self.domain.clone();
        let (tell, found) = sync_channel(1);
        let started = without_signals(|| {
            std::thread::Builder::new()
                .name("onecopy-ah".to_owned())
                .stack_size(128 << 10)
                .spawn(move || {
                    // The lanes may have been dropped meanwhile.
                    let _ = tell.send(domain.address_handle(&path));
                })
        });
        match started {
            Ok(_) => drop(self.finding.insert(path, found)),
            Err(error) => self.fail(name, format!("a thread that resolves the address: {error}")),
        }
    }

    /// Takes address handles that threads have made.
    pub(super) fn take_handles(&mut self) -> bool {
        let mut over = Vec::new();
        for (path, found) in &self.finding {
            match found.try_recv() {
                Ok(Ok(ah)) => over.push((*path, Ok(ah))),
                Ok(Err(error)) => over.push((*path, Err(error.to_string()))),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    over.push((
                        *path,
                        Err("the thread that resolves the address ended".to_owned()),
                    ));
                }
            }
        }
        let found = !over.is_empty();
        for (path, ah) in over {
            self.finding.remove(&path);
            for name in self.lanes.names() {
                let Some(lane) = self.lanes.get_mut(name) else {
                    continue;
                };
                let waits = matches!(lane.stage, Stage::Finding);
                if !waits || lane.peer.is_none_or(|peer| peer.path != path) {
                    continue;
                }
                match &ah {
                    Ok(ah) => {
                        lane.stage = Stage::Ready(ah.clone());
                        self.changed.add(name, lane);
                    }
                    Err(reason) => self.fail(name, reason.clone()),
                }
            }
            if let Ok(ah) = ah {
                self.handles.insert(path, ah);
            }
        }
        found
    }
}
