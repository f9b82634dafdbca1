// SPDX-License-Identifier: MIT OR Apache-2.0
//! The out-of-band connection of one node's host to rank 0's, once both have proven themselves.
//!
//! Nothing here waits. What cannot be sent at once is kept, up to a bound; what has come is given out message by
//! message. A side that has sent nothing for a while sends a heartbeat.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Frames, ToHost};
use crate::wireup::message::DecodeError;

/// Unsent bytes with which a connection is given up: many times the cards of the largest job. Chosen by magnitude.
const MOST_UNSENT: usize = 64 << 20;
/// Bytes of a read, and reads before others have their turn. Chosen by magnitude: all together they take less than a
/// tenth of a millisecond.
const BLOCK: usize = 16 << 10;
const READS: usize = 16;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(in crate::wireup) enum Loss {
    /// The other side closed it.
    #[error("its host closed the connection")]
    Closed,
    /// It failed.
    #[error("the connection to its host failed: {0}")]
    Failed(io::Error),
    /// It brought what is no message.
    #[error("its host sent what is no message: {0}")]
    Nonsense(DecodeError),
    /// Nothing comes.
    #[error("nothing has been heard of its host for {} ms", .0.as_millis())]
    Silent(Duration),
    /// Nothing goes out.
    #[error("its host does not read what is sent to it")]
    Stuck,
}

/// One end of a connection.
#[derive(Debug)]
pub(in crate::wireup) struct Connection {
    stream: TcpStream,
    /// The node at its other end.
    node: u32,
    frames: Frames,
    /// What is still to be sent.
    out: Vec<u8>,
    last_received: Instant,
    last_sent: Instant,
}

/// What has come by a connection.
pub(super) struct Heard {
    pub(super) messages: Vec<ToHost>,
    /// The end of the connection, which came after them.
    pub(super) end: Option<Loss>,
}

impl Connection {
    /// Over a connection that has proven itself.
    pub(super) fn new(stream: TcpStream, node: u32, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            node,
            frames: Frames::default(),
            out: Vec::new(),
            last_received: now,
            last_sent: now,
        })
    }

    /// The node at the other end.
    pub(super) fn node(&self) -> u32 {
        self.node
    }

    /// Whether everything is out.
    pub(super) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// When this side is to send a heartbeat, or to find the other silent.
    pub(super) fn due(&self, timeout: Duration) -> Instant {
        let silent = self.last_received + timeout;
        // No heartbeat is added behind bytes that do not go out.
        match self.is_flushed() {
            true => silent.min(self.last_sent + timeout / 4),
            false => silent,
        }
    }

    /// The clock stood still for this side: that nothing came meanwhile means nothing.
    pub(super) fn forgive(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// Sends a heartbeat if one is due. An error if the other side was silent for too long.
    pub(super) fn tick(
        &mut self,
        timeout: Duration,
        beats: bool,
        now: Instant,
    ) -> Result<(), Loss> {
        if beats && now >= self.last_sent + timeout / 4 && self.is_flushed() {
            self.send(&ToHost::Beat, now)?;
        }
        match now.saturating_duration_since(self.last_received) {
            silent if silent >= timeout => Err(Loss::Silent(silent)),
            _ => Ok(()),
        }
    }

    /// Sends a message, now or as soon as there is room for it.
    pub(super) fn send(&mut self, message: &ToHost, now: Instant) -> Result<(), Loss> {
        let frame = message.frame();
        if self.out.len() + frame.len() > MOST_UNSENT {
            return Err(Loss::Stuck);
        }
        self.out.extend_from_slice(&frame);
        self.last_sent = now;
        self.flush()
    }

    /// Sends what there is room for. The rest stays, also after an error.
    pub(super) fn flush(&mut self) -> Result<(), Loss> {
        let mut sent = 0;
        let result = loop {
            if sent == self.out.len() {
                break Ok(());
            }
            match self.stream.write(&self.out[sent..]) {
                Ok(0) => break Err(Loss::Closed),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(Loss::Failed(error)),
            }
        };
        self.out.drain(..sent);
        result
    }

    /// Takes what has come, and the end of the connection after it.
    pub(super) fn read(&mut self, now: Instant) -> Heard {
        let mut messages = Vec::new();
        let end = self.read_into(&mut messages, now).err();
        Heard { messages, end }
    }

    /// Adds what has come to `messages`. The error is the end of the connection, which came after them.
    fn read_into(&mut self, messages: &mut Vec<ToHost>, now: Instant) -> Result<(), Loss> {
        let mut block = [0; BLOCK];
        for _ in 0..READS {
            match self.stream.read(&mut block) {
                Ok(0) => return Err(Loss::Closed),
                Ok(count) => {
                    self.last_received = now;
                    self.frames.take(&block[..count]);
                    while let Some(message) = self.frames.next().map_err(Loss::Nonsense)? {
                        messages.push(message);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Loss::Failed(error)),
            }
        }
        Ok(())
    }

    /// Ends the sending side: the other side reads the end behind the last message.
    pub(super) fn finish(&self) {
        // Fails only where the other side has gone.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl Drop for Connection {
    /// A connection with unread bytes does not end, it is reset. Then messages that are still on their way are lost.
    fn drop(&mut self) {
        self.finish();
        let mut block = [0; BLOCK];
        for _ in 0..READS {
            match self.stream.read(&mut block) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
