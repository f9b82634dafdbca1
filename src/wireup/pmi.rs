// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of PMI-1, the protocol of hydra (MPICH, Intel) and of Slurm's pmi2 plugin: lines of `key=value` words over
//! an inherited stream.
//!
//! It gives a rank its number, a barrier, and a way to end the job. It also gives a table that all ranks of the job
//! write and read, and no other process. Whatever the server sends is untrusted: lines are bounded, and an answer that
//! is not the one expected is an error that shows it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};
use onecopy_shm::process;

use super::table::Table;
use super::{WireupError, environment};

/// Environment variable with the number of the descriptor that leads to the server.
pub const ENV_FD: &str = "PMI_FD";
/// Environment variable with the rank's number.
pub const ENV_RANK: &str = "PMI_RANK";
/// Environment variable with the number of ranks.
pub const ENV_SIZE: &str = "PMI_SIZE";

/// What errors call the launcher.
const LAUNCHER: &str = "a launcher that speaks PMI";

/// Longest line of a server; the longest value that one announces is 4096 bytes. Four times that, chosen by magnitude,
/// for the words around it.
const MAX_LINE: usize = 16 * 1024;

/// A conversation with a PMI-1 server.
#[derive(Debug)]
pub(crate) struct Client {
    stream: OwnedFd,
    /// What was read behind the last line.
    rest: Vec<u8>,
    rank: usize,
    size: usize,
    table: String,
    longest_value: usize,
    /// How long an answer may take; a barrier waits for all ranks.
    limit: Duration,
}

/// The words of an answer.
#[derive(Debug)]
struct Answer(String);

impl Answer {
    fn get(&self, key: &str) -> Option<&str> {
        self.0
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}

fn failed(call: &'static str, reason: impl Into<String>) -> WireupError {
    WireupError::Foreign {
        call,
        launcher: LAUNCHER.to_owned(),
        reason: reason.into(),
    }
}

/// Whether a PMI launcher has left traces.
pub(super) fn is_present() -> bool {
    let mut traces = [ENV_FD, ENV_RANK, ENV_SIZE].into_iter();
    traces.any(|name| std::env::var_os(name).is_some())
}

/// A number from the environment, if the variable is set.
fn variable(
    name: &str,
    parse: impl Fn(&str) -> Result<u32, String>,
) -> Result<Option<usize>, WireupError> {
    let Some(text) = environment::variable(name) else {
        return Ok(None);
    };
    let number =
        parse(&text).map_err(|what| failed("init", format!("{name}={text:?} is {what}")))?;
    Ok(Some(number as usize))
}

impl Client {
    /// The conversation that the launcher prepared for this process; none if there is no PMI launcher. One that cannot
    /// be used is an error.
    pub(super) fn from_environment(limit: Duration) -> Result<Option<Self>, WireupError> {
        const CALL: &str = "init";
        const ALONE: &str = "to run alone, unset the variables that begin with PMI_";
        let fd = variable(ENV_FD, |text| {
            environment::number(text, i32::MAX.cast_unsigned())
        })?;
        // The size comes first: in a job that is too large, the rank may be, too.
        let size = variable(ENV_SIZE, environment::ranks)?;
        let rank = variable(ENV_RANK, environment::rank)?;
        let (fd, rank, size) = match (fd, rank, size) {
            (Some(fd), Some(rank), Some(size)) if rank < size => (fd, rank, size),
            (Some(_), Some(rank), Some(size)) => {
                let reason = format!("{ENV_RANK}={rank} is not below {ENV_SIZE}={size}");
                return Err(failed(CALL, reason));
            }
            (Some(_), ..) => {
                let reason = format!("{ENV_FD} is set, but not {ENV_RANK} and {ENV_SIZE}; {ALONE}");
                return Err(failed(CALL, reason));
            }
            (None, ..) if std::env::var_os("PMI_PORT").is_some() => {
                let reason = format!(
                    "it offers PMI at a port only (PMI_PORT); start it without -pmi-port; {ALONE}"
                );
                return Err(failed(CALL, reason));
            }
            (None, Some(_), Some(_)) => {
                let reason = format!(
                    "{ENV_RANK} and {ENV_SIZE} are set, but not {ENV_FD}; choose PMI-1 or PMI-2 in the launcher (srun --mpi=pmi2); {ALONE}"
                );
                return Err(failed(CALL, reason));
            }
            (None, ..) => return Ok(None),
        };
        let number = i32::try_from(fd).unwrap_or(-1);
        let stream = process::take_inherited_stream(number).map_err(|source| {
            let reason = environment::taken_before(&source).unwrap_or_else(|| format!(
                "{ENV_FD}={number} is not the launcher's socket ({source}): was this process started by a rank instead of the launcher? {ALONE}"
            ));
            failed(CALL, reason)
        })?;
        Self::new(stream, rank, size, limit).map(Some)
    }

    pub(crate) fn new(
        stream: OwnedFd,
        rank: usize,
        size: usize,
        limit: Duration,
    ) -> Result<Self, WireupError> {
        const CALL: &str = "init";
        let mut this = Self {
            stream,
            rest: Vec::new(),
            rank,
            size,
            table: String::new(),
            longest_value: 0,
            limit,
        };
        let init = "cmd=init pmi_version=1 pmi_subversion=1";
        this.ask(CALL, init, "response_to_init")?;
        let maxes = this.ask(CALL, "cmd=get_maxes", "maxes")?;
        let longest = maxes.get("vallen_max").and_then(|text| text.parse().ok());
        this.longest_value = longest.unwrap_or(256);
        let table = this.ask(CALL, "cmd=get_my_kvsname", "my_kvsname")?;
        let name = table.get("kvsname").map(str::to_owned);
        this.table = name.ok_or_else(|| unexpected(CALL, "kvsname", &table.0))?;
        Ok(this)
    }

    /// Puts a value, which has no blanks, into the job's table. Others see it after a barrier.
    pub(crate) fn put(
        &mut self,
        call: &'static str,
        key: &str,
        value: &str,
    ) -> Result<(), WireupError> {
        debug_assert!(value.bytes().all(|byte| byte.is_ascii_graphic()));
        if value.len() >= self.longest_value {
            let reason = format!(
                "its table takes values of {} bytes; {} are needed",
                self.longest_value,
                value.len() + 1
            );
            return Err(failed(call, reason));
        }
        let line = format!("cmd=put kvsname={} key={key} value={value}", self.table);
        self.ask(call, &line, "put_result").map(drop)
    }

    /// The value that some rank put.
    pub(crate) fn get(&mut self, call: &'static str, key: &str) -> Result<String, WireupError> {
        let line = format!("cmd=get kvsname={} key={key}", self.table);
        let answer = self.ask(call, &line, "get_result")?;
        let value = answer.get("value").map(str::to_owned);
        value.ok_or_else(|| unexpected(call, "value", &answer.0))
    }

    /// Waits until all ranks have come here.
    pub(crate) fn barrier(&mut self, call: &'static str) -> Result<(), WireupError> {
        self.ask(call, "cmd=barrier_in", "barrier_out").map(drop)
    }

    /// Tells the launcher that the end of this process is no failure.
    pub(crate) fn finalize(&mut self) -> Result<(), WireupError> {
        self.ask("leave", "cmd=finalize", "finalize_ack").map(drop)
    }

    /// Has the launcher end the job. There is no answer.
    pub(crate) fn abort(&mut self, code: i32) -> Result<(), WireupError> {
        self.send("abort", &format!("cmd=abort exitcode={code}"))
    }

    fn send(&mut self, call: &'static str, line: &str) -> Result<(), WireupError> {
        let mut bytes = line.as_bytes().to_vec();
        bytes.push(b'\n');
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match send(self.stream.as_raw_fd(), rest, MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET) => {
                    return Err(WireupError::LauncherGone { call });
                }
                Err(errno) => return Err(failed(call, format!("send on {ENV_FD}: {errno}"))),
            }
        }
        Ok(())
    }

    /// Sends a line and returns the answer, which must be of the kind `expected` and no refusal.
    fn ask(
        &mut self,
        call: &'static str,
        line: &str,
        expected: &'static str,
    ) -> Result<Answer, WireupError> {
        self.send(call, line)?;
        let answer = Answer(self.line(call)?);
        let refused = answer.get("rc").is_some_and(|code| code != "0");
        if answer.get("cmd") != Some(expected) || refused {
            return Err(unexpected(call, expected, &answer.0));
        }
        Ok(answer)
    }

    fn line(&mut self, call: &'static str) -> Result<String, WireupError> {
        let start = Instant::now();
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.rest.len() > MAX_LINE {
                return Err(failed(
                    call,
                    format!("its answer is longer than {MAX_LINE} bytes"),
                ));
            }
            let waited = start.elapsed();
            if waited > self.limit {
                let reason = format!(
                    "no answer within {} s. Does every rank initialise onecopy? Raise ONECOPY_JOIN_TIMEOUT if they start slowly",
                    self.limit.as_secs_f32()
                );
                return Err(failed(call, reason));
            }
            let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::from(1000_u16)) {
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(failed(call, format!("poll on {ENV_FD}: {errno}"))),
            }
            let mut block = [0; 1024];
            match recv(self.stream.as_raw_fd(), &mut block, MsgFlags::MSG_DONTWAIT) {
                Ok(0) | Err(Errno::ECONNRESET) => return Err(WireupError::LauncherGone { call }),
                Ok(count) => self.rest.extend_from_slice(&block[..count]),
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(errno) => return Err(failed(call, format!("recv on {ENV_FD}: {errno}"))),
            }
        }
    }
}

impl Table for Client {
    fn launcher(&self) -> &'static str {
        LAUNCHER
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn longest_value(&self) -> usize {
        // One byte is for the end of the text, where a server counts it.
        self.longest_value.saturating_sub(1)
    }

    fn put(&mut self, call: &'static str, key: &str, value: &str) -> Result<(), WireupError> {
        Self::put(self, call, key, value)
    }

    /// Of this protocol's tables a key alone says what is meant.
    fn get(&mut self, call: &'static str, _rank: usize, key: &str) -> Result<String, WireupError> {
        Self::get(self, call, key)
    }

    fn barrier(&mut self, call: &'static str) -> Result<(), WireupError> {
        Self::barrier(self, call)
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Self::finalize(self)
    }

    fn abort(&mut self, code: i32) -> Result<(), WireupError> {
        Self::abort(self, code)
    }
}

fn unexpected(call: &'static str, expected: &str, line: &str) -> WireupError {
    let line: String = line.chars().take(200).collect();
    failed(
        call,
        format!("{expected} was expected, its answer is {line:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    /// A client whose server gives `answers` one by one, and what the client sent.
    fn talk<R>(
        answers: &[&str],
        f: impl FnOnce(Result<Client, WireupError>) -> R,
    ) -> (R, Vec<String>) {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
        let server = std::thread::spawn(move || {
            let mut heard = Vec::new();
            let mut lines = BufReader::new(theirs.try_clone().expect("dup")).lines();
            for answer in answers {
                let Some(Ok(line)) = lines.next() else { break };
                heard.push(line);
                (&theirs).write_all(answer.as_bytes()).expect("write");
            }
            // Gone, but it still reads what the client sends.
            theirs
                .shutdown(std::net::Shutdown::Write)
                .expect("shutdown");
            heard.extend(lines.map_while(Result::ok));
            heard
        });
        let client = Client::new(ours.into(), 0, 2, Duration::from_secs(20));
        let result = f(client);
        (result, server.join().expect("server"))
    }

    const INIT: [&str; 3] = [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=40\n",
        "cmd=my_kvsname kvsname=kvs_1\n",
    ];

    #[test]
    fn values_go_both_ways() {
        let rest = [
            "cmd=put_result rc=0 msg=success\n",
            "cmd=barrier_out\n",
            "cmd=get_result rc=0 value=a:b=c\n",
            "cmd=finalize_ack\n",
        ];
        let (_, heard) = talk(&[&INIT[..], &rest[..]].concat(), |client| {
            let mut client = client.expect("init");
            client.put("join", "k", "v").expect("put");
            client.barrier("join").expect("barrier");
            assert_eq!(client.get("join", "k").expect("get"), "a:b=c");
            client.finalize().expect("finalize");
        });
        assert_eq!(
            heard[3..],
            [
                "cmd=put kvsname=kvs_1 key=k value=v",
                "cmd=barrier_in",
                "cmd=get kvsname=kvs_1 key=k",
                "cmd=finalize"
            ]
        );
    }

    #[test]
    fn refusals_and_nonsense_are_errors_that_show_the_answer() {
        for answer in [
            "cmd=get_result rc=-1 msg=key_k_not_found\n",
            "cmd=barrier_out\n",
            "\n",
            "cmd=get_result rc=0\n",
        ] {
            let (error, _) = talk(&[&INIT[..], &[answer]].concat(), |client| {
                client.expect("init").get("join", "k").expect_err("bad")
            });
            let text = error.to_string();
            assert!(text.contains(answer.trim_end()), "{text}");
        }
        let (error, _) = talk(&["cmd=response_to_init rc=-1\n"], |client| client.err());
        assert!(error.is_some());
    }

    #[test]
    fn a_server_that_is_gone_or_too_small_is_an_error() {
        let (error, _) = talk(&INIT, |client| {
            let mut client = client.expect("init");
            let long = "x".repeat(40);
            let error = client.put("join", "k", &long).expect_err("too long");
            assert!(error.to_string().contains("41 are needed"), "{error}");
            client.barrier("join").expect_err("gone")
        });
        assert!(matches!(error, WireupError::LauncherGone { call: "join" }));
        let endless = "x".repeat(MAX_LINE + 2000);
        let (error, _) = talk(&[&endless], |client| client.expect_err("no line"));
        assert!(error.to_string().contains("longer than"), "{error}");
    }
}
