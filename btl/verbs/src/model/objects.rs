// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of the model: numbers that end what they stand for when they are dropped.

use std::io::PipeReader;
use std::sync::Arc;

use super::Fabric;

/// An open device.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) fabric: Fabric,
    /// Its first port.
    pub(super) device: usize,
    pub(super) events: Arc<PipeReader>,
    pub(super) open: Arc<Open>,
}

/// What is told to one open device.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) fabric: Fabric,
    pub(super) number: u32,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.fabric.lock().listeners.remove(&self.number);
    }
}

/// A domain.
#[derive(Clone, Debug)]
pub struct DomainOf {
    pub(super) context: Context,
    pub(super) number: u64,
}

/// Registered memory.
#[derive(Debug)]
pub struct Memory {
    pub(super) fabric: Fabric,
    pub(super) key: u32,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.fabric.lock().memories.remove(&self.key);
    }
}

/// What tells of completions.
#[derive(Debug)]
pub struct Channel {
    pub(super) fabric: Fabric,
    pub(super) number: u32,
    pub(super) out: Arc<PipeReader>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.fabric.lock().channels.remove(&self.number);
    }
}

/// A queue of completions.
#[derive(Clone, Debug)]
pub struct Completions(pub(super) Arc<QueueCore>);

#[derive(Debug)]
pub(super) struct QueueCore {
    pub(super) fabric: Fabric,
    pub(super) number: u32,
}

impl Drop for QueueCore {
    fn drop(&mut self) {
        self.fabric.lock().queues.remove(&self.number);
    }
}

/// A queue of receives.
#[derive(Clone, Debug)]
pub struct ReceivesOf(pub(super) Arc<ReceivesCore>);

#[derive(Debug)]
pub(super) struct ReceivesCore {
    pub(super) fabric: Fabric,
    pub(super) number: u32,
    pub(super) _completions: Option<Completions>,
}

impl Drop for ReceivesCore {
    fn drop(&mut self) {
        self.fabric.lock().receives.remove(&self.number);
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct PairOf {
    pub(super) fabric: Fabric,
    pub(super) number: u32,
    pub(super) _completions: Completions,
    pub(super) _receives: Option<ReceivesOf>,
}

impl Drop for PairOf {
    fn drop(&mut self) {
        let mut state = self.fabric.lock();
        if let Some(pair) = state.pairs.get_mut(&self.number) {
            pair.holders -= 1;
            if pair.holders == 0 {
                state.pairs.remove(&self.number);
            }
        }
    }
}

/// A peer's address.
#[derive(Debug)]
pub struct AddressHandleOf {
    pub(super) to: [u8; 16],
}

/// A domain that processes share receives in.
#[derive(Clone, Debug)]
pub struct Shared {
    pub(super) number: u64,
}
