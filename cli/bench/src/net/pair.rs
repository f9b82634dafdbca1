// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bare queue pair: what a good program without a library does whose buffers are not registered. It copies into and
//! out of registered memory, sends each message as one, and polls.

use super::{OUT_OF_TURN, Side, TAG};
use crate::BenchError;
use onecopy::Comm;
use onecopy_btl::layers::verbs::settings;
use onecopy_obs::Knobs;
use onecopy_verbs::pair::InitAttributes;
use onecopy_verbs::provider::{Access, Depths, Kind};
use onecopy_verbs::{
    Chosen, Done, Local, Operation, Provider, Queue, QueuePair, QueuePairAddress, Region, Slot,
    Timing, Verbs, port,
};
use std::collections::VecDeque;

/// Messages in a window, and what is permitted beyond them. Chosen by magnitude: a batch of control messages finds room
/// while the window is full.
const BEYOND: usize = 8;
/// Polls in vain before others may have the processor. Chosen by magnitude: some tens of microseconds, about what a
/// short message takes.
const POLLS: u32 = 200;

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Wrong(format!("the bare queue pair: {error}"))
}

/// One side of a connection.
pub(super) struct BarePair<P: Provider = Verbs> {
    chosen: Chosen<P>,
    world: Comm,
    peer: usize,
    link: Option<Link<P>>,
}

/// What one size of messages needs.
struct Link<P: Provider> {
    pair: QueuePair<P>,
    queue: Queue<P>,
    sends: Region<P>,
    _receives: Region<P>,
    /// What has come, with its bytes.
    came: VecDeque<(Slot<P>, usize)>,
}

impl BarePair<Verbs> {
    /// Of the device that the knobs name.
    pub(super) fn open(knobs: &Knobs, world: Comm, peer: usize) -> Result<Self, BenchError> {
        let verbs = Verbs::load().map_err(failed)?;
        Self::of(&verbs, knobs, world, peer)
    }
}

impl<P: Provider> BarePair<P> {
    /// Of a provider's device.
    fn of(provider: &P, knobs: &Knobs, world: Comm, peer: usize) -> Result<Self, BenchError> {
        let wanted = settings(knobs);
        let (name, index) = (wanted.device.as_deref(), wanted.address);
        let chosen = port::choose_at(provider, name, wanted.port, index).map_err(failed)?;
        Ok(Self {
            chosen,
            world,
            peer,
            link: None,
        })
    }

    /// Its device and port.
    pub(super) fn chosen(&self) -> &Chosen<P> {
        &self.chosen
    }

    fn connect(&self, bytes: usize, window: usize) -> Result<Link<P>, BenchError> {
        // Nobody sends more than two windows ahead of its peer.
        let (sends, receives) = (window + BEYOND, 2 * window + BEYOND);
        let device = &self.chosen.device;
        let domain = device.domain().map_err(failed)?;
        let completions = u32::try_from(sends + receives).unwrap_or(u32::MAX);
        let mut queue = Queue::new(device, completions, false).map_err(failed)?;
        let region = |count| domain.region(count, bytes.max(64), Access::default());
        let (out, into) = (
            region(sends).map_err(failed)?,
            region(receives).map_err(failed)?,
        );
        let attributes = InitAttributes {
            kind: Kind::Connection,
            receives: None,
            shared: None,
            depths: Depths {
                sends: sends as u32,
                receives: receives as u32,
                inline: 220,
            },
        };
        let pair = QueuePair::new(&domain, &mut queue, &attributes).map_err(failed)?;
        let pair = pair.prepare(&self.chosen, 0).map_err(failed)?;
        let own = pair.address(&self.chosen, 4711);
        let mut theirs = [0; QueuePairAddress::BYTES];
        let (world, peer) = (&self.world, self.peer);
        world.sendrecv(&own.to_bytes(), peer, TAG, &mut theirs, peer, TAG)?;
        let theirs = QueuePairAddress::from_bytes(&theirs).ok_or_else(|| failed(OUT_OF_TURN))?;
        let timing = Timing::within(std::time::Duration::from_secs(20));
        let pair = pair
            .connect(&self.chosen, &own, &theirs, timing)
            .map_err(failed)?;
        if bytes > pair.largest() as usize {
            return Err(failed(format!(
                "{bytes} bytes are more than the device's largest message of {}; leave them out of --sizes",
                pair.largest()
            )));
        }
        for _ in 0..receives {
            if let Some(slot) = into.take() {
                let posted = pair.receive(&mut queue, slot, 0);
                posted.map_err(|refused| failed(refused.error))?;
            }
        }
        // Nobody sends before the other one receives.
        world.barrier()?;
        Ok(Link {
            pair,
            queue,
            sends: out,
            _receives: into,
            came: VecDeque::new(),
        })
    }

    fn link(&mut self) -> Result<&mut Link<P>, BenchError> {
        self.link.as_mut().ok_or_else(|| failed(OUT_OF_TURN))
    }
}

impl<P: Provider> Link<P> {
    fn poll(&mut self) -> Result<bool, BenchError> {
        let came = &mut self.came;
        let mut outcome = Ok(());
        let count = self.queue.poll(|completion| match completion.outcome {
            Ok(()) => {
                if let (Done::Received, Some(slot)) = (completion.done, completion.slot) {
                    came.push_back((slot, completion.bytes));
                }
            }
            Err(status) => outcome = Err(failed(status)),
        });
        outcome?;
        Ok(count.map_err(failed)? > 0)
    }

    /// Polls until there is something.
    fn wait(&mut self) -> Result<(), BenchError> {
        let mut in_vain = 0u32;
        while !self.poll()? {
            in_vain += 1;
            if in_vain.is_multiple_of(POLLS) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// `false`: there is no room yet.
    fn try_to_send(&mut self, message: &[u8]) -> Result<bool, BenchError> {
        let operation = Operation::Send { immediate: None };
        let posted = if message.len() <= self.pair.inline() {
            self.pair.post_inline(&mut self.queue, operation, message)
        } else {
            let Some(mut slot) = self.sends.take() else {
                return Ok(false);
            };
            slot.write(0, message);
            let local = Local::first(slot, message.len());
            self.pair.post(&mut self.queue, operation, local, 0)
        };
        match posted {
            Ok(()) => Ok(true),
            Err(refused) if refused.is_full() => Ok(false),
            Err(refused) => Err(failed(refused.error)),
        }
    }

    fn send(&mut self, message: &[u8]) -> Result<(), BenchError> {
        while !self.try_to_send(message)? {
            self.wait()?;
        }
        Ok(())
    }

    /// `false`: nothing is there yet.
    fn try_to_receive(&mut self, place: &mut [u8]) -> Result<bool, BenchError> {
        let Some((slot, bytes)) = self.came.pop_front() else {
            return Ok(false);
        };
        if bytes != place.len() {
            return Err(failed(OUT_OF_TURN));
        }
        slot.read(0, place);
        let posted = self.pair.receive(&mut self.queue, slot, 0);
        posted.map_err(|refused| failed(refused.error))?;
        Ok(true)
    }

    fn recv(&mut self, place: &mut [u8]) -> Result<(), BenchError> {
        while !self.try_to_receive(place)? {
            self.wait()?;
        }
        Ok(())
    }
}

impl<P: Provider> Side for BarePair<P> {
    fn prepare(&mut self, bytes: usize, window: usize) -> Result<(), BenchError> {
        if let Some(Link {
            mut queue, pair, ..
        }) = self.link.take()
        {
            // The peer has all that was sent: it answers each round.
            drop(queue.retire(pair));
        }
        self.link = Some(self.connect(bytes, window)?);
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Result<(), BenchError> {
        self.link()?.send(message)
    }

    fn recv(&mut self, place: &mut [u8]) -> Result<(), BenchError> {
        self.link()?.recv(place)
    }

    fn exchange(
        &mut self,
        messages: &[u8],
        places: &mut [u8],
        size: usize,
    ) -> Result<(), BenchError> {
        let link = self.link()?;
        let (mut out, mut into) = (messages.chunks_exact(size), places.chunks_exact_mut(size));
        let (mut message, mut place) = (out.next(), into.next());
        while message.is_some() || place.is_some() {
            let mut moved = false;
            if let Some(bytes) = message
                && link.try_to_send(bytes)?
            {
                (message, moved) = (out.next(), true);
            }
            if let Some(bytes) = &mut place
                && link.try_to_receive(bytes)?
            {
                (place, moved) = (into.next(), true);
            }
            if !moved {
                link.wait()?;
            }
        }
        Ok(())
    }
}
