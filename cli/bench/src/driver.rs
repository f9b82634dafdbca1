// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the patterns need from whatever carries their messages.

mod runtime;
mod unix;

pub use runtime::RuntimeDriver;
pub use unix::UnixDriver;

use super::{BenchError, Missing, Pattern};
use std::ops::DerefMut;

/// Messages of one window: slices of one buffer.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The buffer.
    pub bytes: &'a [u8],
    /// Bytes of one message.
    pub size: usize,
    /// Distance between messages; 0 when all are the same bytes.
    pub stride: usize,
    /// How many.
    pub count: usize,
}

impl<'a> Window<'a> {
    /// The messages in order.
    pub fn messages(self) -> impl Iterator<Item = &'a [u8]> {
        (0..self.count).map(move |index| &self.bytes[index * self.stride..][..self.size])
    }
}

/// Where the messages of one window are to go.
#[derive(Debug)]
pub struct WindowMut<'a> {
    /// The buffer.
    pub bytes: &'a mut [u8],
    /// Bytes of one message.
    pub size: usize,
    /// Distance between messages.
    pub stride: usize,
    /// How many.
    pub count: usize,
}

impl<'a> WindowMut<'a> {
    /// The places in order.
    pub fn places(self) -> impl Iterator<Item = &'a mut [u8]> {
        let size = self.size;
        self.bytes
            .chunks_mut(self.stride)
            .take(self.count)
            .map(move |place| &mut place[..size])
    }
}

/// A collective operation with this rank's buffers.
#[derive(Debug)]
pub struct Call<'a> {
    /// Which.
    pub pattern: Pattern,
    /// What this rank gives. Of a broadcast, the root's buffer.
    pub source: &'a mut [u8],
    /// What it gets.
    pub destination: &'a mut [u8],
    /// The root, of those that have one.
    pub root: usize,
}

/// Carries messages between the ranks of one job.
///
/// Every receive must find exactly as many bytes as its buffer holds; anything else is an error.
pub trait Driver {
    /// Memory that the messages lie in.
    type Buffer: DerefMut<Target = [u8]>;

    /// What of the runtime's mechanisms is not to be had here, with reason and remedy.
    fn missing(&self) -> Vec<Missing>;

    /// Memory for messages of this mechanism, present and writable.
    ///
    /// # Errors
    ///
    /// If there is not enough.
    fn alloc(&mut self, bytes: usize) -> Result<Self::Buffer, BenchError>;

    /// Sends one message.
    ///
    /// # Errors
    ///
    /// If the transport fails.
    fn send(&mut self, message: &[u8], dest: usize) -> Result<(), BenchError>;

    /// Receives one message.
    ///
    /// # Errors
    ///
    /// If the transport fails, or the length is another.
    fn recv(&mut self, place: &mut [u8], source: usize) -> Result<(), BenchError>;

    /// Sends and receives one message at once.
    ///
    /// # Errors
    ///
    /// If the transport fails, or the length is another.
    fn sendrecv(&mut self, message: &[u8], place: &mut [u8], peer: usize)
    -> Result<(), BenchError>;

    /// Sends a window of nonblocking messages and waits for all.
    ///
    /// # Errors
    ///
    /// If the transport fails.
    fn send_window(&mut self, messages: Window<'_>, dest: usize) -> Result<(), BenchError>;

    /// Receives a window of nonblocking messages and waits for all.
    ///
    /// # Errors
    ///
    /// If the transport fails, or a length is another.
    fn recv_window(&mut self, places: WindowMut<'_>, source: usize) -> Result<(), BenchError>;

    /// A window in each direction at once.
    ///
    /// # Errors
    ///
    /// If the transport fails, or a length is another.
    fn exchange_windows(
        &mut self,
        messages: Window<'_>,
        places: WindowMut<'_>,
        peer: usize,
    ) -> Result<(), BenchError>;

    /// Takes part in a collective.
    ///
    /// # Errors
    ///
    /// If it fails, or there is none of this kind.
    fn collective(&mut self, call: Call<'_>) -> Result<(), BenchError> {
        let name = call.pattern.name();
        Err(BenchError::Usage(format!("no {name} without the runtime")))
    }

    /// The most bytes of temporary buffers that this rank's pool had since the last call with `restart`.
    fn pool_peak(&mut self, _restart: bool) -> u64 {
        0
    }

    /// Leaves the job.
    ///
    /// # Errors
    ///
    /// If the transport fails.
    fn leave(self) -> Result<(), BenchError>;
}
