// SPDX-License-Identifier: MIT OR Apache-2.0
//! How what ranks write comes to whom it is for: line by line, to the launcher's own streams or to a function.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use super::output::{Lines, Sink};
use super::{LaunchError, Output, Stream, system};

/// The launcher as a source of output.
const SELF: usize = usize::MAX;
/// Bytes that are read at a time. As much as a pipe of Linux holds by default (pipe(7)).
pub(super) const BLOCK: usize = 64 * 1024;

pub(super) struct Forward {
    /// What each rank has written of a line that is not complete, by stream.
    lines: Vec<[Lines; 2]>,
    to: LineSinks,
}

/// Where complete lines go.
struct LineSinks {
    /// What stands in front of a rank's lines.
    tags: Vec<String>,
    /// The launcher's own streams, if it writes to them.
    sinks: Option<[Sink; 2]>,
}

impl LineSinks {
    fn put(&mut self, output: &mut Output, rank: usize, which: usize, line: &[u8]) {
        match (output, &mut self.sinks) {
            (Output::Lines(f), _) => {
                let streams = [Stream::Stdout, Stream::Stderr];
                f(rank, streams[which], line);
            }
            (_, Some(sinks)) => sinks[which].put(rank, &self.tags[rank], line),
            _ => {}
        }
    }
}

impl Forward {
    pub(super) fn new(output: &Output, ranks: usize) -> Result<Self, LaunchError> {
        let sink = |fd| Sink::new(fd).map_err(system("dup of standard output or error"));
        let sinks = match output {
            Output::Forward { .. } => {
                let (out, err) = (io::stdout(), io::stderr());
                Some([sink(out.as_fd())?, sink(err.as_fd())?])
            }
            _ => None,
        };
        let tag = |rank| match output {
            Output::Forward { tag: true } => format!("[{rank}] "),
            _ => String::new(),
        };
        let tags = (0..ranks).map(tag).collect();
        Ok(Self {
            lines: (0..ranks).map(|_| Default::default()).collect(),
            to: LineSinks { tags, sinks },
        })
    }

    /// Whether no more is to be read of this stream before some of it is written.
    pub(super) fn is_full(&self, which: usize) -> bool {
        let sinks = self.to.sinks.as_ref();
        sinks.is_some_and(|sinks| sinks[which].full())
    }

    /// The launcher's streams to which something is still to be written.
    pub(super) fn pending(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let sinks = self.to.sinks.iter().flatten().enumerate();
        sinks
            .filter(|(_, sink)| sink.pending())
            .map(|(which, sink)| (which, sink.fd()))
    }

    /// Reads what is there of a rank's stream, which is none any more once it has ended. Says whether it goes on.
    pub(super) fn read<R: Read>(
        &mut self,
        output: &mut Output,
        (rank, which): (usize, usize),
        stream: &mut Option<R>,
    ) -> bool {
        let Some(source) = stream else {
            return false;
        };
        let mut block = [0; BLOCK];
        let count = match source.read(&mut block) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(_) => 0,
        };
        if count == 0 {
            self.finish(output, (rank, which));
            *stream = None;
            return false;
        }
        let Self { lines, to } = self;
        lines[rank][which].push(&block[..count], |line| to.put(output, rank, which, line));
        true
    }

    /// Nothing more comes of a rank's stream: what was no whole line goes out as one.
    pub(super) fn finish(&mut self, output: &mut Output, (rank, which): (usize, usize)) {
        let Self { lines, to } = self;
        lines[rank][which].finish(|line| to.put(output, rank, which, line));
    }

    /// Writes what the launcher's stream takes. Says whether nobody can read it any more.
    pub(super) fn write_some(&mut self, which: usize) -> bool {
        let Some(sinks) = &mut self.to.sinks else {
            return false;
        };
        sinks[which].write_some();
        sinks[which].broken()
    }

    /// Writes all, and waits for those who read it.
    pub(super) fn write_all(&mut self) {
        for sink in self.to.sinks.iter_mut().flatten() {
            sink.write_all();
        }
    }

    /// Why some of what went to this stream is lost, reported once.
    pub(super) fn take_error(&mut self, which: usize) -> Option<io::Error> {
        self.to.sinks.as_mut()?[which].take_error()
    }

    /// A line of the launcher's own to standard error.
    pub(super) fn say(&mut self, line: &str) {
        match &mut self.to.sinks {
            Some(sinks) => sinks[1].put(SELF, "", line.as_bytes()),
            // A message that cannot be written has no other place to go.
            None => _ = io::stderr().write_all(line.as_bytes()),
        }
    }
}
