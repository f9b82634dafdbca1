// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ranks write, forwarded line by line.
//!
//! Two ranks' lines never share a line of the output. A line is passed on when it is complete; what is left at the end
//! of a stream is passed on as it is. A line longer than [`LINE_LIMIT`] goes in pieces: if another rank writes in
//! between, the line is ended there.
//!
//! The launcher must never wait for the reader of its output, since ranks wait for the launcher. So lines go to a
//! buffer that is written when the descriptor has room. When the buffer is full the ranks' pipes are not read until it
//! has drained.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// Longest line that is kept whole. Chosen by magnitude: no person reads longer ones, and it bounds what a rank makes
/// the launcher keep.
pub(super) const LINE_LIMIT: usize = 1 << 20;
/// A buffer beyond this accepts no more from ranks. Chosen by magnitude: room for one line of the longest.
const HIGH_WATER: usize = 1 << 20;
/// What a pipe that polls writable takes without waiting. `PIPE_BUF` of Linux (pipe(7)).
const PIPE_CHUNK: usize = 4096;

/// Collects a stream into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Passes all lines that are complete with `data` to `emit`; pieces of a very long one too.
    pub(super) fn push(&mut self, data: &[u8], mut emit: impl FnMut(&[u8])) {
        let Some(end) = data.iter().rposition(|&byte| byte == b'\n') else {
            self.partial.extend_from_slice(data);
            if self.partial.len() >= LINE_LIMIT {
                emit(&self.partial);
                self.partial.clear();
            }
            return;
        };
        let (whole, rest) = data.split_at(end + 1);
        for line in whole.split_inclusive(|&byte| byte == b'\n') {
            if self.partial.is_empty() {
                emit(line);
            } else {
                self.partial.extend_from_slice(line);
                emit(&self.partial);
                self.partial.clear();
            }
        }
        self.partial.extend_from_slice(rest);
    }

    /// Passes on what is left.
    pub(super) fn finish(&mut self, emit: impl FnOnce(&[u8])) {
        if !self.partial.is_empty() {
            emit(&self.partial);
            self.partial = Vec::new();
        }
    }
}

/// One of the launcher's own output streams.
#[derive(Debug)]
pub(super) struct Sink {
    file: File,
    /// A regular file never blocks for long and takes everything at once.
    regular: bool,
    buffer: Vec<u8>,
    written: usize,
    /// Whose unfinished line the output ends with.
    unfinished: Option<usize>,
    broken: bool,
    /// Why it broke, if that is not that nobody reads it any more.
    error: Option<io::Error>,
}

impl Sink {
    /// Writes to a copy of `fd`.
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let file = File::from(fd.try_clone_to_owned()?);
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        Ok(Self {
            file,
            regular,
            buffer: Vec::new(),
            written: 0,
            unfinished: None,
            broken: false,
            error: None,
        })
    }

    /// Puts a line, or a piece of one, of `source` into the buffer, with `tag` in front if it begins a line.
    pub(super) fn put(&mut self, source: usize, tag: &str, line: &[u8]) {
        if self.broken || line.is_empty() {
            return;
        }
        if self.unfinished.is_some_and(|other| other != source) {
            self.buffer.push(b'\n');
            self.unfinished = None;
        }
        if self.unfinished.is_none() {
            self.buffer.extend_from_slice(tag.as_bytes());
        }
        self.buffer.extend_from_slice(line);
        self.unfinished = (line.last() != Some(&b'\n')).then_some(source);
    }

    /// Whether ranks' output should wait.
    pub(super) fn full(&self) -> bool {
        self.buffer.len() - self.written > HIGH_WATER
    }

    /// Whether there is something to write.
    pub(super) fn pending(&self) -> bool {
        self.written < self.buffer.len()
    }

    /// Whether nobody reads this output any more.
    pub(super) fn broken(&self) -> bool {
        self.broken
    }

    /// Why output was lost, once.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes as much as surely goes without waiting. To be called when the descriptor polls writable.
    pub(super) fn write_some(&mut self) {
        let rest = &self.buffer[self.written..];
        let chunk = match self.regular {
            true => rest,
            false => &rest[..rest.len().min(PIPE_CHUNK)],
        };
        match self.file.write(chunk) {
            Ok(count) => self.written += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => {}
            Err(error) => {
                self.error = (error.kind() != io::ErrorKind::BrokenPipe).then_some(error);
                self.give_up();
            }
        }
        if self.written == self.buffer.len() {
            self.buffer.clear();
            self.written = 0;
        } else if self.written > HIGH_WATER {
            self.buffer.drain(..self.written);
            self.written = 0;
        }
    }

    /// Writes everything, waiting as long as it takes.
    pub(super) fn write_all(&mut self) {
        while self.pending() && !self.broken {
            let mut fds = [nix::poll::PollFd::new(
                self.file.as_fd(),
                nix::poll::PollFlags::POLLOUT,
            )];
            // A failing poll is followed by a write that says what is wrong.
            let _ = nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE);
            self.write_some();
        }
    }

    fn give_up(&mut self) {
        self.broken = true;
        self.buffer.clear();
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn lines_of(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for part in parts {
            lines.push(part, |line| out.push(line.to_vec()));
        }
        lines.finish(|line| out.push(line.to_vec()));
        out
    }

    #[test]
    fn lines_are_passed_on_when_complete() {
        let out = lines_of(&[b"ab", b"c\nd\n\ne", b"f"]);
        assert_eq!(out, [&b"abc\n"[..], b"d\n", b"\n", b"ef"]);
        assert!(lines_of(&[]).is_empty());
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let block = vec![b'x'; LINE_LIMIT / 2];
        let out = lines_of(&[&block, &block, &block]);
        assert_eq!(out.len(), 2);
        assert_eq!(out.concat().len(), block.len() * 3);
    }

    #[test]
    fn ranks_never_share_a_line() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        let mut sink = Sink::new(writer.as_fd()).expect("sink");
        sink.put(0, "[0] ", b"un");
        sink.put(0, "[0] ", b"finished");
        sink.put(1, "[1] ", b"whole\n");
        sink.put(0, "[0] ", b"rest\n");
        sink.write_all();
        drop((sink, writer));
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read");
        assert_eq!(text, "[0] unfinished\n[1] whole\n[0] rest\n");
    }

    #[test]
    fn a_reader_that_is_gone_breaks_the_sink() {
        let (reader, writer) = io::pipe().expect("pipe");
        let mut sink = Sink::new(writer.as_fd()).expect("sink");
        drop(reader);
        sink.put(0, "", b"line\n");
        sink.write_all();
        assert!(sink.broken() && !sink.pending());
    }
}
