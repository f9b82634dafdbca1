// SPDX-License-Identifier: MIT OR Apache-2.0
//! The door for `tests/fuzz` to the PMI-1 server.

use crate::pmi;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Serves PMI-1 to ranks that say these bytes, one piece after the other. Every answer is a line.
pub fn pmi_server<'a>(ranks: usize, script: impl Iterator<Item = (usize, bool, &'a [u8])>) {
    let mut server = pmi::Server::new(ranks);
    let mut sockets = Vec::new();
    for _ in 0..ranks {
        let Ok((ours, theirs)) = pmi::pair() else {
            return;
        };
        server.add(ours);
        let end = UnixStream::from(theirs);
        if end.set_nonblocking(true).is_err() {
            return;
        }
        sockets.push(end);
    }
    let mut answer = vec![0u8; 4096];
    for (rank, ends_now, bytes) in script {
        let rank = rank % ranks;
        // A connection that the server has closed refuses.
        let _ = (&sockets[rank]).write(bytes);
        server.ready(rank);
        if ends_now {
            server.ended(rank);
        }
        drop(server.notices());
        if let Ok(got) = (&sockets[rank]).read(&mut answer)
            && got < answer.len()
            && got > 0
        {
            assert_eq!(answer[got - 1], b'\n', "an answer that is no line");
            assert!(answer.starts_with(b"cmd="));
        }
    }
}
