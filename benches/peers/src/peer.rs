// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job of the C program: started by its library's launcher, driven through a socket of rank 0.

use crate::contestant::Mpi;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onecopy_bench::BenchError;
use onecopy_bench::protocol::{Order, Outcome, Work};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Ranks that are not there, and orders that are not answered, after so long have hung.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ranks that were told to end get so long.
const GRACE: Duration = Duration::from_secs(10);

/// A job that waits for orders.
#[derive(Debug)]
pub(crate) struct PeerJob {
    name: String,
    child: Child,
    line: BufReader<UnixStream>,
    // Its files go with the job.
    _folder: TempDir,
}

impl PeerJob {
    /// Starts a rank on each of these processors and waits until all are there.
    pub(crate) fn start(name: &str, mpi: &Mpi, processors: &[usize]) -> Result<Self, BenchError> {
        let ranks = processors.len();
        let places: Vec<String> = processors.iter().map(usize::to_string).collect();
        let places = places.join(",");
        let folder = tempfile::Builder::new()
            .prefix("onecopy-peers-")
            .tempdir()
            .map_err(BenchError::io("folder of a job"))?;
        let socket = folder.path().join("line");
        let page = folder.path().join("page");
        fs::write(&page, [0u8; 4096]).map_err(BenchError::io(page.display().to_string()))?;
        let listener =
            UnixListener::bind(&socket).map_err(BenchError::io(socket.display().to_string()))?;
        listener
            .set_nonblocking(true)
            .map_err(BenchError::io("listen"))?;
        let words: [&OsStr; 4] = [
            socket.as_os_str(),
            page.as_os_str(),
            mpi.memory.as_ref(),
            places.as_ref(),
        ];
        let mut command = mpi.command(ranks, &words);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // A group of its own, so that all of it can be ended.
        let mut child = command
            .process_group(0)
            .spawn()
            .map_err(BenchError::io(format!("{command:?}")))?;
        let line = match accept(&listener, &mut child) {
            Ok(line) => line,
            Err(reason) => {
                end(&mut child);
                return Err(wrong(name, &reason));
            }
        };
        let mut job = Self {
            name: name.to_owned(),
            child,
            line: BufReader::new(line),
            _folder: folder,
        };
        let ready = job.hear()?;
        if ready != format!("ready {ranks}") {
            return Err(wrong(
                name,
                &format!("{ranks} ranks were asked for; rank 0 said '{ready}'"),
            ));
        }
        Ok(job)
    }

    /// Gives an order and waits until it is done.
    pub(crate) fn order(&mut self, order: &Order) -> Result<Outcome, BenchError> {
        let words = match order {
            Order::Batch(work) => spell("batch", work),
            Order::Check(work) => spell("check", work),
            Order::Release => "release".to_owned(),
            Order::Leave => "leave".to_owned(),
            Order::Probe(_) => {
                return Err(BenchError::Usage("a peer does not probe by itself".into()));
            }
        };
        let answer = self.ask(&words)?;
        let mut fields = answer.split(' ');
        let mut number = || fields.next().and_then(|field| field.parse::<f64>().ok());
        let outcome = match answer.split(' ').next() {
            Some("done") => {
                let _ = number();
                match (number(), number(), number()) {
                    (Some(us), Some(before_ns), Some(after_ns)) => Some(Outcome {
                        us,
                        before_ns,
                        after_ns,
                        ..Outcome::default()
                    }),
                    _ => None,
                }
            }
            Some("checked") => answer
                .strip_prefix("checked ")
                .and_then(|bytes| bytes.parse().ok())
                .map(|checked_bytes| Outcome {
                    checked_bytes,
                    ..Outcome::default()
                }),
            Some("released" | "left") => Some(Outcome::default()),
            _ => None,
        };
        outcome.ok_or_else(|| wrong(&self.name, &format!("'{words}': {answer}")))
    }

    /// Memory of rank 0 after ten integers to every other rank, KiB as the kernel shares it out.
    pub(crate) fn memory(&mut self) -> Result<u64, BenchError> {
        let answer = self.ask("memory")?;
        answer
            .strip_prefix("memory ")
            .and_then(|kib| kib.parse().ok())
            .ok_or_else(|| wrong(&self.name, &answer))
    }

    /// Ends the job.
    pub(crate) fn leave(mut self) -> Result<(), BenchError> {
        self.order(&Order::Leave)?;
        let since = Instant::now();
        while since.elapsed() < GRACE {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(wrong(&self.name, &format!("ended with {status}"))),
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(BenchError::io("wait for a job")(error)),
            }
        }
        Err(wrong(&self.name, "does not end"))
    }

    fn ask(&mut self, words: &str) -> Result<String, BenchError> {
        self.line
            .get_mut()
            .write_all(format!("{words}\n").as_bytes())
            .map_err(BenchError::io(format!("order to {}", self.name)))?;
        self.hear()
    }

    fn hear(&mut self) -> Result<String, BenchError> {
        let mut text = String::new();
        match self.line.read_line(&mut text) {
            Ok(0) => {
                let printed = last_words(&mut self.child);
                Err(wrong(&self.name, &format!("ended unexpectedly{printed}")))
            }
            Ok(_) => Ok(text.trim_end().to_owned()),
            Err(error) => Err(BenchError::io(format!("no answer of {}", self.name))(error)),
        }
    }
}

impl Drop for PeerJob {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn spell(what: &str, work: &Work) -> String {
    format!(
        "{what} {} {} {} {} {} {}",
        work.pattern.name(),
        work.mode.name(),
        work.size,
        work.window,
        work.iterations,
        u8::from(work.one_root)
    )
}

fn wrong(name: &str, reason: &str) -> BenchError {
    BenchError::Wrong(format!("{name}: {reason}"))
}

fn accept(listener: &UnixListener, child: &mut Child) -> Result<UnixStream, String> {
    let since = Instant::now();
    loop {
        match listener.accept() {
            Ok((line, _)) => {
                let ready = line
                    .set_nonblocking(false)
                    .and_then(|()| line.set_read_timeout(Some(PATIENCE)));
                return ready.map(|()| line).map_err(|error| error.to_string());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("ended with {status}{}", last_words(child)));
        }
        if since.elapsed() > PATIENCE {
            return Err("rank 0 has not come".to_owned());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// What a job that has ended wrote to its standard error.
fn last_words(child: &mut Child) -> String {
    end(child);
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        // It may not be text.
        let _ = stderr.take(4096).read_to_string(&mut text);
    }
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .take(4)
        .collect();
    if lines.is_empty() {
        String::new()
    } else {
        format!(": {}", lines.join(" / "))
    }
}

/// Ends the whole group: politely, so that a launcher can take its ranks along, then not.
fn end(child: &mut Child) {
    let Ok(pid) = i32::try_from(child.id()) else {
        return;
    };
    let group = Pid::from_raw(-pid);
    let since = Instant::now();
    let mut asked = false;
    loop {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            // What it left behind; mostly nothing.
            let _ = kill(group, Signal::SIGKILL);
            return;
        }
        if since.elapsed() > Duration::from_secs(3) {
            let _ = kill(group, Signal::SIGKILL);
        } else if !asked {
            asked = true;
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Seconds that a job takes that only begins and ends MPI.
pub(crate) fn empty_job(mut command: Command) -> Result<f64, BenchError> {
    let what = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let since = Instant::now();
    let status = command.status().map_err(BenchError::io(what.clone()))?;
    let seconds = since.elapsed().as_secs_f64();
    if status.success() {
        Ok(seconds)
    } else {
        Err(BenchError::Wrong(format!("{what}: {status}")))
    }
}
