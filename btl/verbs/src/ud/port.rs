// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pair that all lanes share, and the port that it is on.

use super::{Datagrams, INLINE_MAX, INLINE_SENDS};
use crate::error::Result;
use crate::pair::{InitAttributes, QueuePair};
use crate::provider::{Depths, Kind, Provider};
use crate::queue::DATAGRAM_HEAD;

impl<P: Provider> Datagrams<P> {
    /// Makes the pair, with all receives posted.
    pub(super) fn open_pair(&mut self) -> Result<()> {
        let attributes = InitAttributes {
            kind: Kind::Datagrams,
            receives: None,
            shared: None,
            depths: Depths {
                sends: self.memory.sends() as u32 + INLINE_SENDS,
                receives: self.memory.receives() as u32,
                inline: self.settings.inline.min(INLINE_MAX) as u32,
            },
        };
        let pair = QueuePair::new(&self.domain, &mut self.queue, &attributes)?;
        let pair = pair.prepare(self.port.chosen(), self.keys.qkey())?.open()?;
        while let Some(slot) = self.memory.take_receive() {
            if pair.receive(&mut self.queue, slot, 0).is_err() {
                break;
            }
        }
        self.pair = Some(pair);
        Ok(())
    }

    /// Whether lanes can be made now. Looks again at a port that was down, and makes a new pair for one that failed.
    pub(super) fn look_at_port(&mut self) -> std::result::Result<(), String> {
        let packet = self.memory.room() + DATAGRAM_HEAD;
        self.port.look(|chosen| {
            if chosen.state.packet as usize >= packet {
                Ok(())
            } else {
                Err("the port's packets are shorter than before".to_owned())
            }
        })?;
        if self.pair.is_none() {
            self.open_pair().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Retires the pair, and fails all lanes.
    pub(super) fn fail_pair(&mut self, reason: &str) {
        if let Some(pair) = self.pair.take() {
            drop(self.queue.retire(pair));
        }
        self.lanes.fail_all(reason);
    }
}
