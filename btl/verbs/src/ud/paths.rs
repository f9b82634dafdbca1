// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles: a thread asks the kernel for the one of a path, and all lanes of the path use it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError};

use super::{Datagrams, Stage};
use crate::domain::{AddressHandle, Domain};
use crate::error::Result;
use crate::provider::{Path, Provider};
use crate::thread;

/// Address handles that were given up and still exist, since the device may still use them. Beyond, a handle stays in
/// use. Chosen by magnitude: each takes some hundred bytes of kernel and device.
const OLD_MAX: usize = 64;

/// The address handles of all lanes, by path.
///
/// Invariants: one thread at most looks for a path's handle. A handle that was given up exists as long as the device
/// could use it.
#[derive(Debug)]
pub(super) struct Handles<P: Provider> {
    known: HashMap<Path, AddressHandle<P>>,
    /// What threads look for.
    finding: HashMap<Path, Receiver<Result<AddressHandle<P>>>>,
    /// Those that were given up.
    old: Vec<AddressHandle<P>>,
}

impl<P: Provider> Handles<P> {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            finding: HashMap::new(),
            old: Vec::new(),
        }
    }

    pub(super) fn is_finding(&self) -> bool {
        !self.finding.is_empty()
    }

    /// Has a thread look for a path's handle, unless one does.
    fn find(&mut self, domain: &Domain<P>, path: Path) -> std::io::Result<()> {
        if self.finding.contains_key(&path) {
            return Ok(());
        }
        let domain = domain.clone();
        let found = thread::call("onecopy-ah", move || domain.address_handle(&path))?;
        self.finding.insert(path, found);
        Ok(())
    }

    /// Takes what threads have found, or why they have not.
    fn take_found(&mut self) -> Vec<(Path, std::result::Result<AddressHandle<P>, String>)> {
        let mut over = Vec::new();
        self.finding.retain(|path, found| {
            let found = match found.try_recv() {
                Ok(Ok(ah)) => Ok(ah),
                Ok(Err(error)) => Err(error.to_string()),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => {
                    Err("the thread that resolves the address ended".to_owned())
                }
            };
            over.push((*path, found));
            false
        });
        for (path, found) in &over {
            if let Ok(ah) = found {
                self.known.insert(*path, ah.clone());
            }
        }
        over
    }

    /// A path leads elsewhere, perhaps: its handle is looked for again.
    pub(super) fn give_up(&mut self, path: &Path) {
        if self.old.len() < OLD_MAX
            && let Some(ah) = self.known.remove(path)
        {
            self.old.push(ah);
        }
    }
}

impl<P: Provider> Datagrams<P> {
    /// Gets the address handle of a lane's peer: a kept one, or a new one by a thread.
    pub(super) fn find(&mut self, name: u64, path: Path) {
        let Some((lane, changed)) = self.lanes.with_changed(name) else {
            return;
        };
        if let Some(ah) = self.handles.known.get(&path) {
            lane.stage = Stage::Ready(ah.clone());
            return changed.add(name, lane);
        }
        lane.stage = Stage::Finding;
        if let Err(error) = self.handles.find(&self.domain, path) {
            let reason = format!("a thread that resolves the address: {error}");
            self.lanes.fail(name, reason);
        }
    }

    /// Takes address handles that threads have made.
    pub(super) fn take_handles(&mut self) -> bool {
        let over = self.handles.take_found();
        let found = !over.is_empty();
        for (path, ah) in over {
            for name in self.lanes.names() {
                let Some((lane, changed)) = self.lanes.with_changed(name) else {
                    continue;
                };
                let is_waiting = matches!(lane.stage, Stage::Finding);
                if !is_waiting || lane.peer.is_none_or(|peer| peer.path != path) {
                    continue;
                }
                match &ah {
                    Ok(ah) => {
                        lane.stage = Stage::Ready(ah.clone());
                        changed.add(name, lane);
                    }
                    Err(reason) => self.lanes.fail(name, reason.clone()),
                }
            }
        }
        found
    }
}
