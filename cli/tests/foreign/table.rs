// SPDX-License-Identifier: MIT OR Apache-2.0
//! A PMI-1 server of the test's own, which does what it is asked and nothing else. It ends no rank because another one
//! has, so that a test sees what the ranks themselves do.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

#[derive(Debug, Default)]
struct State {
    values: HashMap<String, String>,
    waiting: usize,
    round: usize,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    size: usize,
}

/// The table of one job.
#[derive(Debug, Clone)]
pub(crate) struct Table(Arc<Shared>);

impl Table {
    pub(crate) fn new(size: usize) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            size,
        }))
    }

    /// Tells `command` of its place at this table. What is returned is to be kept until it has been started.
    pub(crate) fn seat(&self, command: &mut Command, rank: usize) -> OwnedFd {
        let flags = SockFlag::empty();
        let made = socketpair(AddressFamily::Unix, SockType::Stream, None, flags);
        let (ours, theirs) = made.expect("socketpair");
        command.env("PMI_FD", theirs.as_raw_fd().to_string());
        command.env("PMI_RANK", rank.to_string());
        command.env("PMI_SIZE", self.0.size.to_string());
        let shared = Arc::clone(&self.0);
        std::thread::spawn(move || shared.serve(&UnixStream::from(ours)));
        theirs
    }

    /// What a rank has put.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        self.0.state.lock().expect("lock").values.get(key).cloned()
    }
}

impl Shared {
    fn serve(&self, stream: &UnixStream) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let word = |key: &str| {
                let mut words = line.split_ascii_whitespace();
                words
                    .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
                    .map(str::to_owned)
            };
            let needed = |key: &str| word(key).unwrap_or_default();
            let answer = match needed("cmd").as_str() {
                "init" => "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1".to_owned(),
                "get_maxes" => {
                    "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=256".to_owned()
                }
                "get_my_kvsname" => "cmd=my_kvsname rc=0 kvsname=test".to_owned(),
                "put" => {
                    let mut state = self.state.lock().expect("lock");
                    state.values.insert(needed("key"), needed("value"));
                    "cmd=put_result rc=0".to_owned()
                }
                "get" => match self.state.lock().expect("lock").values.get(&needed("key")) {
                    Some(value) => format!("cmd=get_result rc=0 value={value}"),
                    None => "cmd=get_result rc=-1 msg=no_such_key".to_owned(),
                },
                "barrier_in" => {
                    self.barrier();
                    "cmd=barrier_out rc=0".to_owned()
                }
                "finalize" => "cmd=finalize_ack rc=0".to_owned(),
                // A rank that aborts ends itself, and the others hear of it.
                _ => continue,
            };
            if (&mut &*stream)
                .write_all(format!("{answer}\n").as_bytes())
                .is_err()
            {
                return;
            }
        }
    }

    fn barrier(&self) {
        let mut state = self.state.lock().expect("lock");
        state.waiting += 1;
        if state.waiting == self.size {
            state.waiting = 0;
            state.round += 1;
            self.changed.notify_all();
            return;
        }
        let round = state.round;
        drop(self.changed.wait_while(state, |state| state.round == round));
    }
}
