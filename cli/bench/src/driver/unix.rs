// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages through a Unix stream socket: what programs do that have no transport library.

use super::{Driver, Window, WindowMut};
use crate::{BenchError, Missing};
use onecopy_shm::limits::{PageBuf, Pages};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// A job whose first and last rank share a socket. Only they can send.
#[derive(Debug)]
pub struct UnixDriver {
    socket: Option<UnixStream>,
}

impl UnixDriver {
    /// The first or last rank has a socket, the ranks between have none.
    #[must_use]
    pub fn new(socket: Option<UnixStream>) -> Self {
        Self { socket }
    }

    fn socket(&mut self) -> Result<&mut UnixStream, BenchError> {
        self.socket.as_mut().ok_or_else(|| {
            BenchError::Usage("a socket joins the first and the last rank only".into())
        })
    }

    /// Writes and reads at once, for neither side may wait until the other has read everything.
    fn both(&mut self, messages: Window<'_>, places: WindowMut<'_>) -> Result<(), BenchError> {
        let socket = self.socket()?;
        let mut out: Vec<&[u8]> = messages.messages().collect();
        let mut into: Vec<&mut [u8]> = places.places().collect();
        let (mut sent, mut taken) = ((0, 0), (0, 0));
        let fail = |error| BenchError::io("socket between ranks")(error);
        socket.set_nonblocking(true).map_err(fail)?;
        let result = loop {
            if sent.0 == out.len() && taken.0 == into.len() {
                break Ok(());
            }
            let step = (|| -> io::Result<()> {
                if let Some(message) = out.get_mut(sent.0) {
                    let rest = &message[sent.1..];
                    let n = match rest.is_empty() {
                        true => 0,
                        false => would_block(socket.write(rest))?,
                    };
                    sent.1 += n;
                    if sent.1 == message.len() {
                        sent = (sent.0 + 1, 0);
                    }
                }
                if let Some(place) = into.get_mut(taken.0) {
                    let rest = &mut place[taken.1..];
                    let n = match rest.is_empty() {
                        true => 0,
                        false => would_block(socket.read(rest))?,
                    };
                    taken.1 += n;
                    if taken.1 == place.len() {
                        taken = (taken.0 + 1, 0);
                    }
                }
                Ok(())
            })();
            if let Err(error) = step {
                break Err(fail(error));
            }
        };
        socket.set_nonblocking(false).map_err(fail)?;
        result
    }
}

fn would_block(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

impl Driver for UnixDriver {
    type Buffer = PageBuf;

    fn missing(&self) -> Vec<Missing> {
        Vec::new()
    }

    fn alloc(&mut self, bytes: usize) -> Result<PageBuf, BenchError> {
        PageBuf::new(bytes, Pages::Small).map_err(BenchError::io("message buffer"))
    }

    fn send(&mut self, message: &[u8], _dest: usize) -> Result<(), BenchError> {
        // A stream has no empty messages: one byte stands for one.
        let bytes = if message.is_empty() { &[0] } else { message };
        self.socket()?
            .write_all(bytes)
            .map_err(BenchError::io("socket between ranks"))
    }

    fn recv(&mut self, place: &mut [u8], _source: usize) -> Result<(), BenchError> {
        let mut one = [0];
        let place = if place.is_empty() { &mut one } else { place };
        self.socket()?
            .read_exact(place)
            .map_err(BenchError::io("socket between ranks"))
    }

    fn sendrecv(
        &mut self,
        message: &[u8],
        place: &mut [u8],
        peer: usize,
    ) -> Result<(), BenchError> {
        if message.len() <= 4096 {
            self.send(message, peer)?;
            return self.recv(place, peer);
        }
        let (size, stride) = (message.len(), place.len().max(1));
        let out = Window {
            bytes: message,
            size,
            stride: 0,
            count: 1,
        };
        let into = WindowMut {
            size: place.len(),
            bytes: place,
            stride,
            count: 1,
        };
        self.both(out, into)
    }

    fn send_window(&mut self, messages: Window<'_>, dest: usize) -> Result<(), BenchError> {
        messages
            .messages()
            .try_for_each(|message| self.send(message, dest))
    }

    fn recv_window(&mut self, places: WindowMut<'_>, source: usize) -> Result<(), BenchError> {
        places
            .places()
            .try_for_each(|place| self.recv(place, source))
    }

    fn exchange_windows(
        &mut self,
        messages: Window<'_>,
        places: WindowMut<'_>,
        _peer: usize,
    ) -> Result<(), BenchError> {
        self.both(messages, places)
    }

    fn leave(self) -> Result<(), BenchError> {
        Ok(())
    }
}
