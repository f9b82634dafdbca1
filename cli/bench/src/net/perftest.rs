// SPDX-License-Identifier: MIT OR Apache-2.0
//! perftest beside the library: its programs send as many bytes by the same device, in the same run.
//!
//! Rank 0 starts both sides of a program, each on the processor of a rank, while the ranks wait. What a program prints
//! is the limit of the row. Where there is none of it, the bare queue pair's figure is.

use super::NetPattern;
use nix::sys::signal::Signal;
use onecopy_shm::process::{Setup, spawn};
use onecopy_verbs::{Chosen, Provider};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A device, by which the programs send.
pub(super) struct Perftest {
    device: String,
    port: u8,
    /// The index of the own address; none in a subnet of InfiniBand.
    address: Option<u8>,
    /// Bytes of a packet, if datagrams are compared: these are no longer.
    packet: Option<u32>,
    /// The processors of the two ranks.
    processors: [Option<u16>; 2],
}

/// How long both sides of a program may take. Chosen by magnitude: a batch takes milliseconds; under translation many
/// times as long.
const LIMIT: Duration = Duration::from_secs(120);
/// How often the second side is started: the first one may not listen yet. Fifty at these pauses are five seconds,
/// chosen by magnitude.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);
/// How often is looked whether they have ended: each look takes a processor from one side. Chosen by magnitude.
const LOOK: Duration = Duration::from_millis(20);

impl Perftest {
    pub(super) fn on<P: Provider>(
        chosen: &Chosen<P>,
        datagrams: bool,
        processors: [Option<u16>; 2],
    ) -> Self {
        Self {
            device: chosen.device.name().to_owned(),
            port: chosen.port,
            address: chosen.address.map(|address| address.index),
            packet: datagrams.then_some(chosen.state.packet),
            processors,
        }
    }

    /// The program for a pattern and size, with its arguments. `None`: perftest has none.
    fn command(
        &self,
        (pattern, bytes): (NetPattern, usize),
        iterations: usize,
    ) -> Option<Vec<String>> {
        if self.packet.is_some_and(|packet| bytes > packet as usize) {
            return None;
        }
        let program = match pattern {
            NetPattern::PingPong => "ib_send_lat",
            NetPattern::Bw | NetPattern::BiBw if self.packet.is_none() => "ib_write_bw",
            NetPattern::Bw | NetPattern::BiBw | NetPattern::Rate => "ib_send_bw",
        };
        // The other flag: processors may change their frequency.
        let text = format!(
            "{program} -F -d {} -i {} -s {bytes} -n {}",
            self.device,
            self.port,
            iterations.clamp(10, 20_000)
        );
        let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let mut add = |word: &str| words.push(word.to_owned());
        if let Some(index) = self.address {
            add("-x");
            add(&index.to_string());
        }
        if self.packet.is_some() {
            add("-c");
            add("UD");
        }
        if pattern == NetPattern::BiBw {
            add("-b");
        }
        Some(words)
    }

    /// Microseconds per message of so many. `None`: perftest has no such program, or it is not there.
    ///
    /// # Errors
    ///
    /// What a program said last that has failed.
    pub(super) fn measure(
        &self,
        point: (NetPattern, usize),
        iterations: usize,
    ) -> Result<Option<f64>, String> {
        let Some(words) = self.command(point, iterations) else {
            return Ok(None);
        };
        let Some(text) = self.run(&words)? else {
            return Ok(None);
        };
        let us = of_output(point, &text);
        us.map(Some)
            .ok_or_else(|| format!("{}: no result in what it printed", words[0]))
    }

    /// What the second side of a program prints. `None`: there is no such program.
    fn run(&self, words: &[String]) -> Result<Option<String>, String> {
        let until = Instant::now() + LIMIT;
        let place = free_port().map_err(|error| format!("a port for {}: {error}", words[0]))?;
        let start = |side: usize| {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).args(["-p", &place.to_string()]);
            if side == 1 {
                command.arg(Ipv4Addr::LOCALHOST.to_string());
            }
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let setup = Setup {
                // A rank that is killed ends no side.
                death_signal: Some(Signal::SIGKILL),
                ..Setup::default()
            };
            // A child begins where this thread may run.
            super::pin(self.processors[side]);
            let child = spawn(command, &setup);
            super::pin(self.processors[0]);
            child
        };
        let mut first = match start(0) {
            Ok(child) => Side(child),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", words[0])),
        };
        let mut errors = String::new();
        for _ in 0..ATTEMPTS {
            std::thread::sleep(PAUSE);
            let mut second = Side(start(1).map_err(|error| format!("{}: {error}", words[0]))?);
            if second.ends_well(until)? {
                first.ends_well(until)?;
                return Ok(Some(second.output()));
            }
            if first.has_ended() {
                return Err(format!("{}: {}", words[0], last_line(&first.errors())));
            }
            errors = second.errors();
        }
        Err(format!("{}: {}", words[0], last_line(&errors)))
    }
}

/// A side of a program. It ends with its owner.
struct Side(Child);

impl Side {
    /// Waits until it ends. Says whether it is content.
    fn ends_well(&mut self, until: Instant) -> Result<bool, String> {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
                Ok(None) => return Err(format!("perftest does not end in {} s", LIMIT.as_secs())),
                Err(error) => return Err(format!("perftest: {error}")),
            }
        }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// What it has printed, once it has ended: no more than fits into a pipe.
    fn output(&mut self) -> String {
        all(self.0.stdout.take())
    }

    fn errors(&mut self) -> String {
        all(self.0.stderr.take())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn last_line(text: &str) -> &str {
    let mut lines = text.lines().rev();
    let last = lines.find(|line| !line.trim().is_empty());
    last.unwrap_or("it failed, and did not say why")
}

fn all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A port at which nobody listens now.
fn free_port() -> std::io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// Microseconds per message, out of the table that a program prints. It has a typical half round trip, a bandwidth (MiB
/// a second), or a rate (millions a second). A bandwidth is of both directions if there are two.
fn of_output((pattern, bytes): (NetPattern, usize), text: &str) -> Option<f64> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    // "BW peak" and "BW average" are one column each.
    let mut titles = lines
        .next()?
        .split_whitespace()
        .filter(|&word| word != "BW");
    let wanted = match pattern {
        NetPattern::PingPong => "t_typical[usec]",
        // Both are MiB: later releases say so.
        NetPattern::Bw | NetPattern::BiBw => "average[MB/sec]",
        NetPattern::Rate => "MsgRate[Mpps]",
    };
    let column = titles.position(|title| title.replace("MiB", "MB") == wanted)?;
    let values = lines.find(|line| {
        line.trim_start()
            .starts_with(|first: char| first.is_ascii_digit())
    })?;
    let value: f64 = values.split_whitespace().nth(column)?.parse().ok()?;
    let us = match pattern {
        NetPattern::PingPong => value,
        NetPattern::Bw => bytes as f64 / value / MIB * 1e6,
        NetPattern::BiBw => 2.0 * bytes as f64 / value / MIB * 1e6,
        NetPattern::Rate => 1.0 / value,
    };
    (us.is_finite() && us > 0.0).then_some(us)
}

const MIB: f64 = 1_048_576.0;

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
 local address: LID 0000 QPN 0x0011 PSN 0x76c3a4
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       1000          20.05          1830.15      21.62     	       23.94       	40.03  		30.40   		1830.15
---------------------------------------------------------------------------------------
";
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    100              30.10              25.00   		     0.000025
";

    #[test]
    fn figures_are_taken_out_of_the_tables() {
        assert_eq!(of_output((NetPattern::PingPong, 8), LATENCY), Some(21.62));
        let near =
            |found: Option<f64>, us: f64| found.is_some_and(|found| (found - us).abs() < 1e-6 * us);
        assert!(near(
            of_output((NetPattern::Bw, 1 << 20), BANDWIDTH),
            40_000.0
        ));
        assert!(near(
            of_output((NetPattern::BiBw, 1 << 20), BANDWIDTH),
            80_000.0
        ));
        assert!(near(of_output((NetPattern::Rate, 8), BANDWIDTH), 40_000.0));
        let later = BANDWIDTH.replace("MB/sec", "MiB/sec");
        assert!(near(of_output((NetPattern::Bw, 1 << 20), &later), 40_000.0));
        for bad in [
            "",
            "#bytes",
            LATENCY.trim_end_matches(|c| c != ']'),
            "#bytes BW average[MB/sec]\n8 0.0",
        ] {
            assert_eq!(of_output((NetPattern::Bw, 8), bad), None, "{bad:?}");
        }
    }

    fn device(packet: Option<u32>) -> Perftest {
        Perftest {
            device: "rx0".into(),
            port: 1,
            address: Some(3),
            packet,
            processors: [None; 2],
        }
    }

    #[test]
    fn a_pattern_has_the_program_that_does_the_same() {
        let line = |packet, pattern, bytes| {
            let words = device(packet).command((pattern, bytes), 100);
            words.map(|words| words.join(" "))
        };
        let rest = |program: &str, bytes: usize| {
            format!("{program} -F -d rx0 -i 1 -s {bytes} -n 100 -x 3")
        };
        assert_eq!(
            line(None, NetPattern::PingPong, 8),
            Some(rest("ib_send_lat", 8))
        );
        assert_eq!(line(None, NetPattern::Rate, 8), Some(rest("ib_send_bw", 8)));
        assert_eq!(
            line(None, NetPattern::BiBw, 4096),
            Some(rest("ib_write_bw", 4096) + " -b")
        );
        assert_eq!(
            line(Some(4096), NetPattern::Bw, 4096),
            Some(rest("ib_send_bw", 4096) + " -c UD")
        );
        assert_eq!(
            line(Some(4096), NetPattern::PingPong, 4097),
            None,
            "a datagram is one packet"
        );
    }

    /// Programs that are not there, that fail, and that do not listen at once.
    #[test]
    fn a_program_that_fails_says_why() {
        let words = |script: &str| ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
        let there = device(None);
        assert_eq!(there.run(&["onecopy-no-such-program".to_owned()]), Ok(None));
        let fails = there.run(&words("echo no device >&2; exit 1"));
        assert_eq!(fails, Err("sh: no device".to_owned()));
        // With an address it is the second side.
        let both = "case $3 in '') exec sleep 1;; *) echo figures;; esac";
        assert_eq!(there.run(&words(both)), Ok(Some("figures\n".to_owned())));
    }
}
