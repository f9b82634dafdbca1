// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connecting to a peer when the first record goes to it or comes from it.

use super::Engine;
use crate::endpoint::{Endpoint, OpenError, SharedMemory};
use crate::error::{Error, Result};
use crate::peer::{Gone, Peer};
use onecopy_btl::LayerId;
use onecopy_btl::contract::PeerAccess;
use onecopy_btl::registry;
use onecopy_obs::tracepoints;
use onecopy_shm::fault;

impl Engine {
    #[cold]
    pub(super) fn connect(&mut self, rank: u32) -> Result<()> {
        if let Some(error) = self.lives.error_of(rank) {
            return Err(error);
        }
        if !self.shares_node(rank) {
            return self.connect_apart(rank);
        }
        let introduction = self.wireup.introduce(rank as usize)?;
        let opened = SharedMemory::open(&self.core.home, introduction.memory, rank);
        let mut shared = match opened {
            Ok(shared) => shared,
            Err(OpenError::Foreign(reason)) => {
                // Nothing can be believed of this peer, now or later.
                let gone = Gone::Protocol(reason);
                let error = gone.error(rank);
                self.core.agenda.fail(rank, gone);
                return Err(error);
            }
            Err(OpenError::Failed(error)) => return Err(error),
        };
        fault::point("connect.mapped");
        let means = PeerAccess {
            pid: introduction.pid,
            grant: introduction.grant,
            export: self
                .exports
                .of_ranks
                .get(rank as usize)
                .copied()
                .unwrap_or_default(),
        };
        let link =
            shared
                .connect(&means, &self.permitted)
                .map_err(|refusal| Error::Unreachable {
                    rank: rank as usize,
                    reason: refusal.to_string(),
                })?;
        fault::point("connect.proven");
        let knobs = &self.core.knobs;
        shared.keep_of(knobs.peer_share(), self.core.chunks.depth, knobs.return_min);
        let mut proven = vec![LayerId::CHUNKS.name()];
        for (layer, refusal) in link.refusals() {
            let name = layer.name();
            match refusal {
                None => proven.push(name),
                Some(refusal) => tracepoints::layer_refused(rank as usize, name, &refusal.reason),
            }
        }
        tracepoints::peer_connected(rank as usize, &proven.join(","));
        let endpoint = Endpoint::SharedMemory(shared);
        let mut peer = Peer::new(rank, endpoint, link, self.peer_settings());
        peer.life.pidfd = introduction.pidfd;
        peer.announce_reading();
        if introduction.pid.is_some() {
            registry::permit(&self.core.knobs, introduction.pid);
        }
        self.peers[rank as usize] = Some(Box::new(peer));
        Ok(())
    }
}
