// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that copy what a test tells them to: this test program, started again.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::{Pid, gettid};
use onecopy_trace::bpf::{Collector, Options, Probe};
use onecopy_trace::observed::{Mechanism, Observed, PairCounts, PairKey, Peer};

use crate::limit;

const ROLE: &str = "TEST_ROLE";
const MARK: &str = "role: ";
/// What each process has to be read and written.
pub(crate) const MEMORY: usize = 16 << 20;

/// Starts to observe, or says why the test is skipped.
pub(crate) fn observe(options: &Options) -> Option<(Collector, Vec<Probe>)> {
    match Collector::start(options) {
        Ok(started) => Some(started),
        Err(error) => {
            println!("skipped: {error}");
            assert!(
                !nix::unistd::geteuid().is_root() || error.reason.contains("permitted"),
                "{error}"
            );
            None
        }
    }
}

/// What was counted of a caller, its peer and a mechanism: something, at least.
pub(crate) fn counts(
    observed: &Observed,
    caller: u32,
    peer: Peer,
    mechanism: Mechanism,
) -> PairCounts {
    let key = PairKey {
        caller,
        peer,
        mechanism,
        writes: mechanism == Mechanism::CmaWrite,
    };
    let found = observed.pairs.get(&key);
    found.cloned().unwrap_or_else(|| {
        let all: Vec<_> = observed.pairs.keys().collect();
        panic!("{key:?} is not among {all:?}")
    })
}

/// A process that does what it is told.
pub(crate) struct Actor {
    /// Its id as this test sees it.
    pub(crate) pid: u32,
    /// Its id as it sees itself.
    pub(crate) own: i32,
    /// Its thread that copies.
    pub(crate) tid: i32,
    /// Where its memory is.
    pub(crate) memory: usize,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    process: limit::Limited,
}

impl Actor {
    /// Starts one, by this program and arguments before its own, if there are any.
    pub(crate) fn start(before: &[&str]) -> Self {
        let exe = std::env::current_exe().expect("own path");
        let mut words: Vec<String> = before.iter().map(|word| (*word).to_owned()).collect();
        words.push(exe.display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.args([
            "--exact",
            "acts_if_it_is_told_to",
            "--nocapture",
            "--test-threads=1",
        ]);
        command
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = limit::start(&mut command);
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut actor = Self {
            pid: process.id(),
            own: 0,
            tid: 0,
            memory: 0,
            input,
            output,
            process,
        };
        let hello = actor.answer();
        let mut words = hello.split(' ');
        let mut next = || {
            words
                .next()
                .expect("a word")
                .parse::<usize>()
                .expect("a number")
        };
        let number = |word: usize| i32::try_from(word).expect("an id");
        (actor.own, actor.tid, actor.memory) = (number(next()), number(next()), next());
        actor
    }

    /// Tells it what to do, and returns what it answers.
    pub(crate) fn tell(&mut self, what: &str) -> String {
        let input = self.input.as_mut().expect("not ended");
        writeln!(input, "{what}").expect("it reads");
        input.flush().expect("it reads");
        self.answer()
    }

    /// Lets it end, and waits for that.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        let status = self.process.wait().expect("wait");
        assert!(status.success(), "{status}");
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("a line");
            assert!(read > 0, "it ended");
            if let Some((_, answer)) = line.trim_end().split_once(MARK) {
                return answer.to_owned();
            }
        }
    }
}

/// The other side of [`Actor`]: does what the standard input says, if this process was started for that.
pub(crate) fn act() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let _ = nix::sys::prctl::set_thp_disable(true);
    let mut memory = vec![1_u8; MEMORY];
    let mut sink = vec![2_u8; MEMORY];
    let own = std::process::id();
    println!("{MARK}{own} {} {}", gettid(), memory.as_mut_ptr() as usize);
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default().to_owned();
        let numbers: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
        let answer = carry_out(&verb, &numbers, &mut sink);
        println!("{MARK}{answer}");
    }
}

/// `read PID ADDRESS LENGTH TIMES`; `write`, `fresh`, `churn` and `child` likewise; `pieces PID ADDRESS LENGTH COUNT`.
/// Answers the sum of what was copied, or the last errno.
fn carry_out(verb: &str, numbers: &[usize], sink: &mut [u8]) -> String {
    let &[pid, base, len, times] = numbers else {
        return "what?".to_owned();
    };
    let pid = Pid::from_raw(i32::try_from(pid).expect("an id"));
    let whole = [RemoteIoVec { base, len }];
    let (mut sum, mut failed) = (0, None);
    let mut note = |result: Result<usize, Errno>| match result {
        Ok(bytes) => sum += bytes,
        Err(errno) => failed = Some(errno),
    };
    match verb {
        "read" => {
            for _ in 0..times {
                note(process_vm_readv(
                    pid,
                    &mut [IoSliceMut::new(&mut sink[..len])],
                    &whole,
                ));
            }
        }
        "write" => {
            for _ in 0..times {
                note(process_vm_writev(
                    pid,
                    &[IoSlice::new(&sink[..len])],
                    &whole,
                ));
            }
        }
        "pieces" => {
            let piece = len / times;
            let remote: Vec<_> = (0..times)
                .map(|index| RemoteIoVec {
                    base: base + 2 * index * piece,
                    len: piece,
                })
                .collect();
            note(process_vm_readv(
                pid,
                &mut [IoSliceMut::new(&mut sink[..len])],
                &remote,
            ));
        }
        // Its address space changes all the time, by several threads.
        "churn" => std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..times {
                        drop(std::hint::black_box(vec![3_u8; len]));
                    }
                });
            }
        }),
        // Memory that was never touched: the allocator takes it from the kernel.
        // A process that it starts does it.
        "child" => {
            let mut child = Actor::start(&[]);
            let answer = child.tell(&format!("read {pid} {base} {len} {times}"));
            child.end();
            return answer;
        }
        "fresh" => {
            let mut fresh = vec![0_u8; len];
            for _ in 0..times {
                note(process_vm_readv(
                    pid,
                    &mut [IoSliceMut::new(&mut fresh)],
                    &whole,
                ));
            }
        }
        _ => return "what?".to_owned(),
    }
    failed.map_or_else(|| sum.to_string(), |errno| format!("{errno:?}"))
}
