// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pair that all lanes share, and the port that it is on.

use super::{Datagrams, INLINE_MAX, INLINE_SENDS};
use crate::error::Result;
use crate::pair::{InitAttributes, Pair};
use crate::port::{Chosen, look_at};
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
                sends: self.sends.count() as u32 + INLINE_SENDS,
                receives: self.receives.count() as u32,
                inline: self.settings.inline.min(INLINE_MAX) as u32,
            },
        };
        // Q_Keys with the highest bit are the kernel's.
        self.qkey = self.fresh(u32::MAX) as u32 & 0x7fff_ffff;
        let pair = Pair::new(&self.domain, &mut self.queue, &attributes)?;
        let pair = pair.prepare(&self.chosen, self.qkey)?.open()?;
        while let Some(slot) = self.receives.take() {
            if pair.receive(&mut self.queue, slot, 0).is_err() {
                break;
            }
        }
        self.pair = Some(pair);
        Ok(())
    }

    /// Whether lanes can be made now. Looks again at a port that was down, and makes a new pair for one that failed.
    pub(super) fn look_at_port(&mut self) -> std::result::Result<(), String> {
        if self.is_stale {
            let Chosen { device, port, .. } = &self.chosen;
            match look_at(device.clone(), *port, self.settings.address) {
                Ok(chosen) if chosen.state.packet as usize >= self.room + DATAGRAM_HEAD => {
                    self.chosen = chosen;
                    self.down = None;
                    self.is_stale = false;
                }
                Ok(_) => self.down = Some("the port's packets are shorter than before".to_owned()),
                Err(reason) => self.down = Some(reason),
            }
        }
        if let Some(reason) = &self.down {
            return Err(reason.clone());
        }
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
        for name in self.lanes.names() {
            self.fail(name, reason.to_owned());
        }
    }
}
