// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's side of PMI-1, so that programs of other MPI libraries run under our launcher. It offers a table that
//! all ranks write and read, a barrier, and the wish to end the job. These go in lines of `key=value` words over an
//! inherited stream.
//!
//! As the [broker](onecopy::wireup::broker), the server never waits: what cannot be sent at once is kept per rank.
//! Ranks are not trusted: lines, keys, values, and the table as a whole are bounded, and a rank that exceeds a bound
//! loses its connection.
//!
//! A barrier that can never be complete, because a rank has ended, ends the job: nobody is left waiting.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use onecopy::wireup::poll_args::Polled;

/// Bounds that ranks get. Those of keys and values are MPICH's (`PMI2_MAX_KEYLEN` and `PMI2_MAX_VALLEN` of pmi2.h);
/// names are given here, and short.
const MAX_NAME: usize = 256;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 1024;
/// Longest line: the longest command that these bounds permit, and then some.
const MAX_LINE: usize = 4096;
/// Entries of the table per rank. Libraries need a few; some put one per peer. Chosen by magnitude: such a table is for
/// as many peers; it bounds what a rank makes the launcher keep.
const MAX_ENTRIES: usize = 4096;
/// A rank that leaves so much unread is not asked for more. Chosen by magnitude: sixteen of the longest lines.
const HIGH_WATER: usize = 64 << 10;

/// What the launcher should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A rank wants the job to end.
    Abort { rank: usize, code: i32 },
    /// A rank broke the rules and lost its connection.
    Complaint { rank: usize, text: String },
    /// Ranks wait for one that has ended.
    Stuck { missing: usize },
    /// A rank has ended that began and did not finalize: others may wait for it in ways that are not seen here.
    Deserted { rank: usize },
}

#[derive(Debug)]
struct Client {
    socket: Option<OwnedFd>,
    /// What was read behind the last line.
    rest: Vec<u8>,
    /// What is to be sent.
    out: Vec<u8>,
    /// Between `init` and `finalize`.
    member: bool,
    in_barrier: bool,
    ended: bool,
    /// Lines up to `endcmd` belong to one command.
    in_block: bool,
}

/// Serves the ranks of one job.
#[derive(Debug)]
pub(crate) struct Server {
    clients: Vec<Client>,
    name: String,
    table: BTreeMap<String, String>,
    notices: Vec<Notice>,
}

/// A connection for one rank: our end and its end.
pub(crate) fn pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    socketpair(AddressFamily::Unix, SockType::Stream, None, flags)
}

impl Server {
    /// A server of a job of `ranks`, without connections.
    pub(crate) fn new(ranks: usize) -> Self {
        let mapping = format!("(vector,(0,1,{ranks}))");
        Self {
            clients: Vec::new(),
            name: format!("onecopy_{}", std::process::id()),
            table: [("PMI_process_mapping".to_owned(), mapping)].into(),
            notices: Vec::new(),
        }
    }

    /// Adds the next rank: our end of its connection.
    pub(crate) fn add(&mut self, socket: OwnedFd) {
        self.clients.push(Client {
            socket: Some(socket),
            rest: Vec::new(),
            out: Vec::new(),
            member: false,
            in_barrier: false,
            ended: false,
            in_block: false,
        });
    }

    /// Descriptors to poll.
    pub(crate) fn polled(&self) -> impl Iterator<Item = Polled<'_, usize>> {
        self.clients
            .iter()
            .enumerate()
            .filter_map(|(rank, client)| {
                Some(Polled {
                    token: rank,
                    fd: client.socket.as_ref()?.as_fd(),
                    read: client.out.len() < HIGH_WATER,
                    write: !client.out.is_empty(),
                })
            })
    }

    /// What the launcher should know since it last asked.
    pub(crate) fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The process of this rank has ended.
    pub(crate) fn ended(&mut self, rank: usize) {
        // What it sent before it ended comes first.
        self.ready(rank);
        self.clients[rank].ended = true;
        if self.clients[rank].member {
            self.notices.push(Notice::Deserted { rank });
        }
        self.look_for_stuck();
    }

    /// Serves a connection that is ready.
    pub(crate) fn ready(&mut self, rank: usize) {
        self.flush(rank);
        // Bounded, so that one talkative rank does not keep the others waiting.
        for _ in 0..16 {
            let Some(socket) = &self.clients[rank].socket else {
                return;
            };
            let mut block = [0; MAX_LINE];
            match recv(socket.as_raw_fd(), &mut block, MsgFlags::MSG_DONTWAIT) {
                Ok(0) | Err(Errno::ECONNRESET) => return self.hung_up(rank),
                Ok(count) => self.clients[rank].rest.extend_from_slice(&block[..count]),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return,
                Err(errno) => return self.disconnect(rank, format!("recv: {errno}")),
            }
            while let Some(line) = self.next_line(rank) {
                if let Err(text) = self.serve(rank, &line) {
                    return self.disconnect(rank, text);
                }
            }
            if self.clients[rank].rest.len() > MAX_LINE {
                return self.disconnect(rank, format!("a line of more than {MAX_LINE} bytes"));
            }
        }
    }

    fn next_line(&mut self, rank: usize) -> Option<String> {
        let rest = &mut self.clients[rank].rest;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line: Vec<u8> = rest.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    fn serve(&mut self, rank: usize, line: &str) -> Result<(), String> {
        if self.clients[rank].in_block {
            if line.trim() == "endcmd" {
                self.clients[rank].in_block = false;
                // The answer of a launcher that has no processes to give to a program that wants more.
                self.say(rank, "cmd=spawn_result rc=-1 msg=spawn_is_not_supported");
            }
            return Ok(());
        }
        if line.starts_with("mcmd=spawn") {
            self.clients[rank].in_block = true;
            return Ok(());
        }
        self.answer(rank, Command::of(line)?);
        Ok(())
    }

    fn answer(&mut self, rank: usize, command: Command<'_>) {
        let answer = match command {
            Command::Init { known: true } => {
                self.clients[rank].member = true;
                "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1".to_owned()
            }
            Command::Init { known: false } => {
                "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1".to_owned()
            }
            Command::GetMaxes => format!(
                "cmd=maxes rc=0 kvsname_max={MAX_NAME} keylen_max={MAX_KEY} vallen_max={MAX_VALUE}"
            ),
            Command::GetAppnum => "cmd=appnum rc=0 appnum=0".to_owned(),
            Command::GetUniverseSize => {
                format!("cmd=universe_size rc=0 size={}", self.clients.len())
            }
            Command::GetMyKvsname => format!("cmd=my_kvsname rc=0 kvsname={}", self.name),
            Command::Put { key, value } => self.put(key.to_owned(), value.to_owned()),
            Command::Get { key } => match self.table.get(key) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
            },
            Command::BarrierIn => return self.enter_barrier(rank),
            Command::Finalize => {
                self.clients[rank].member = false;
                "cmd=finalize_ack rc=0".to_owned()
            }
            Command::Abort { code } => return self.notices.push(Notice::Abort { rank, code }),
            Command::Names { kind } => {
                format!("cmd={kind}_result rc=-1 msg=names_are_not_supported")
            }
        };
        self.say(rank, &answer);
    }

    fn enter_barrier(&mut self, rank: usize) {
        self.clients[rank].in_barrier = true;
        if self.clients.iter().all(|client| client.in_barrier) {
            for rank in 0..self.clients.len() {
                self.clients[rank].in_barrier = false;
                self.say(rank, "cmd=barrier_out rc=0");
            }
        } else {
            self.look_for_stuck();
        }
    }

    fn put(&mut self, key: String, value: String) -> String {
        let refused = |why: &str| format!("cmd=put_result rc=-1 msg={why}");
        if key.len() > MAX_KEY || value.len() > MAX_VALUE {
            return refused("key_or_value_is_too_long");
        }
        if self.table.len() > MAX_ENTRIES * self.clients.len() {
            return refused("the_table_is_full");
        }
        self.table.insert(key, value);
        "cmd=put_result rc=0 msg=success".to_owned()
    }

    fn say(&mut self, rank: usize, line: &str) {
        let out = &mut self.clients[rank].out;
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
        self.flush(rank);
    }

    fn flush(&mut self, rank: usize) {
        let client = &mut self.clients[rank];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while let (Some(socket), false) = (&client.socket, client.out.is_empty()) {
            match send(socket.as_raw_fd(), &client.out, flags) {
                Ok(count) => drop(client.out.drain(..count)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                // The end of the connection is noticed where it is read.
                Err(_) => client.out.clear(),
            }
        }
    }

    fn hung_up(&mut self, rank: usize) {
        let client = &mut self.clients[rank];
        client.socket = None;
        client.out.clear();
    }

    fn disconnect(&mut self, rank: usize, text: String) {
        self.notices.push(Notice::Complaint { rank, text });
        self.hung_up(rank);
    }

    /// Does anyone wait in a barrier to which a rank that has ended cannot come?
    fn look_for_stuck(&mut self) {
        if self
            .clients
            .iter()
            .any(|client| client.in_barrier && !client.ended)
            && let Some(missing) = self
                .clients
                .iter()
                .position(|client| client.ended && !client.in_barrier)
        {
            self.notices.push(Notice::Stuck { missing });
        }
    }
}

/// What a rank asks for by a line.
enum Command<'l> {
    /// `known`: it speaks the version that is spoken here.
    Init {
        known: bool,
    },
    GetMaxes,
    GetAppnum,
    GetUniverseSize,
    GetMyKvsname,
    Put {
        key: &'l str,
        value: &'l str,
    },
    Get {
        key: &'l str,
    },
    BarrierIn,
    Finalize,
    Abort {
        code: i32,
    },
    /// Of names that are published, which are not supported.
    Names {
        kind: &'l str,
    },
}

impl<'l> Command<'l> {
    fn of(line: &'l str) -> Result<Self, String> {
        let word = |key: &str| {
            line.split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let needed = |key| word(key).ok_or_else(|| unknown(line));
        Ok(match needed("cmd")? {
            "init" => Self::Init {
                known: word("pmi_version") == Some("1"),
            },
            "get_maxes" => Self::GetMaxes,
            "get_appnum" => Self::GetAppnum,
            "get_universe_size" => Self::GetUniverseSize,
            "get_my_kvsname" => Self::GetMyKvsname,
            "put" => {
                let key = needed("key")?;
                // Up to the end of the line: a value may have blanks.
                let (_, value) = line.split_once(" value=").ok_or_else(|| unknown(line))?;
                let value = value.trim_end();
                Self::Put { key, value }
            }
            "get" => Self::Get {
                key: needed("key")?,
            },
            "barrier_in" => Self::BarrierIn,
            "finalize" => Self::Finalize,
            "abort" => Self::Abort {
                code: word("exitcode")
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(1),
            },
            command @ ("publish_name" | "unpublish_name" | "lookup_name") => Self::Names {
                kind: command.trim_end_matches("_name"),
            },
            _ => return Err(unknown(line)),
        })
    }
}

fn unknown(line: &str) -> String {
    let line: String = line.chars().take(100).collect();
    format!("not a command of PMI-1: {line:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn server(ranks: usize) -> (Server, Vec<UnixStream>) {
        let mut server = Server::new(ranks);
        let sockets = (0..ranks).map(|_| {
            let (ours, theirs) = pair().expect("pair");
            server.add(ours);
            let end = UnixStream::from(theirs);
            end.set_nonblocking(true).expect("nonblocking");
            end
        });
        let sockets = sockets.collect();
        (server, sockets)
    }

    /// Says a line and returns what has come back.
    fn ask(server: &mut Server, sockets: &[UnixStream], rank: usize, line: &str) -> String {
        (&sockets[rank])
            .write_all(format!("{line}\n").as_bytes())
            .expect("write");
        server.ready(rank);
        received(&sockets[rank])
    }

    fn received(mut end: &UnixStream) -> String {
        let mut block = [0; 4096];
        match end.read(&mut block) {
            Ok(count) => String::from_utf8_lossy(&block[..count]).into_owned(),
            Err(_) => String::new(),
        }
    }

    #[test]
    fn what_one_rank_puts_the_others_get() {
        let (mut server, sockets) = server(2);
        let init = ask(
            &mut server,
            &sockets,
            0,
            "cmd=init pmi_version=1 pmi_subversion=1",
        );
        assert!(
            init.starts_with("cmd=response_to_init rc=0 pmi_version=1"),
            "{init}"
        );
        let init = ask(
            &mut server,
            &sockets,
            1,
            "cmd=init pmi_version=2 pmi_subversion=0",
        );
        assert!(init.contains("rc=-1"), "PMI-2 is not spoken: {init}");
        let put = ask(
            &mut server,
            &sockets,
            0,
            "cmd=put kvsname=k key=a value=x=1 y=2",
        );
        assert_eq!(put, "cmd=put_result rc=0 msg=success\n");
        let get = ask(&mut server, &sockets, 1, "cmd=get kvsname=k key=a");
        assert_eq!(get, "cmd=get_result rc=0 msg=success value=x=1 y=2\n");
        let get = ask(&mut server, &sockets, 1, "cmd=get kvsname=k key=b");
        assert!(get.contains("rc=-1"), "{get}");
        let get = ask(&mut server, &sockets, 1, "cmd=get key=PMI_process_mapping");
        assert!(get.ends_with("value=(vector,(0,1,2))\n"), "{get}");
        let long = format!("cmd=put key=a value={}", "x".repeat(MAX_VALUE + 1));
        assert!(ask(&mut server, &sockets, 0, &long).contains("rc=-1"));
    }

    #[test]
    fn a_barrier_ends_for_all_at_once_or_is_known_to_be_stuck() {
        let (mut server, sockets) = server(2);
        for _ in 0..3 {
            assert_eq!(ask(&mut server, &sockets, 1, "cmd=barrier_in"), "");
            assert_eq!(
                ask(&mut server, &sockets, 0, "cmd=barrier_in"),
                "cmd=barrier_out rc=0\n"
            );
            assert_eq!(received(&sockets[1]), "cmd=barrier_out rc=0\n");
        }
        assert_eq!(ask(&mut server, &sockets, 1, "cmd=barrier_in"), "");
        assert_eq!(server.notices(), []);
        server.ended(0);
        assert_eq!(server.notices(), [Notice::Stuck { missing: 0 }]);
    }

    #[test]
    fn a_rank_that_began_must_finalize() {
        let (mut server, sockets) = server(2);
        for rank in 0..2 {
            ask(
                &mut server,
                &sockets,
                rank,
                "cmd=init pmi_version=1 pmi_subversion=1",
            );
        }
        assert_eq!(
            ask(&mut server, &sockets, 0, "cmd=finalize"),
            "cmd=finalize_ack rc=0\n"
        );
        server.ended(0);
        assert_eq!(server.notices(), []);
        server.ended(1);
        assert_eq!(server.notices(), [Notice::Deserted { rank: 1 }]);
    }

    #[test]
    fn the_wish_to_abort_is_passed_on_also_if_it_was_the_last_word() {
        let (mut server, sockets) = server(1);
        (&sockets[0])
            .write_all(b"cmd=abort exitcode=7\n")
            .expect("write");
        drop(sockets);
        server.ended(0);
        assert_eq!(server.notices(), [Notice::Abort { rank: 0, code: 7 }]);
        assert_eq!(server.polled().count(), 0);
    }

    #[test]
    fn what_is_not_supported_is_refused_and_nonsense_ends_the_connection() {
        let (mut server, sockets) = server(1);
        assert_eq!(ask(&mut server, &sockets, 0, "mcmd=spawn\nnprocs=1"), "");
        assert!(ask(&mut server, &sockets, 0, "endcmd").contains("spawn_result rc=-1"));
        let answer = ask(&mut server, &sockets, 0, "cmd=lookup_name service=x");
        assert!(answer.starts_with("cmd=lookup_result rc=-1"), "{answer}");
        for noise in [
            "cmd=dance".to_owned(),
            "?".to_owned(),
            "x".repeat(2 * MAX_LINE),
        ] {
            let (mut server, sockets) = self::server(1);
            ask(&mut server, &sockets, 0, &noise);
            assert!(matches!(
                server.notices()[..],
                [Notice::Complaint { rank: 0, .. }]
            ));
            assert_eq!(server.polled().count(), 0);
        }
    }

    #[test]
    fn a_rank_that_does_not_read_is_not_asked_for_more() {
        let (mut server, sockets) = server(1);
        let mut asked = 0;
        while server.polled().all(|polled| polled.read) {
            if (&sockets[0]).write_all(b"cmd=get_maxes\n").is_ok() {
                asked += 1;
            }
            server.ready(0);
            assert!(asked < 1_000_000, "answers are kept without bound");
        }
        let mut answered = 0;
        while answered < asked {
            server.ready(0);
            answered += received(&sockets[0]).matches('\n').count();
        }
    }
}
