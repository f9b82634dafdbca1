// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event loop that conducts a job from its first process to its last.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CpuSet;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use onecopy_shm::process;

use super::forward::{BLOCK, Forward};
use super::signals::{ENDING, Signals};
use super::start::{self, Rank};
use super::sweep::{NOTICE, PATIENCE};
use super::{Cause, Job, JobOutcome, LaunchError, bind, obstacle, pmi, sweep, system};
use onecopy::wireup::broker::{Broker, Notice, Token};
use onecopy::wireup::{Death, Missing, own_processors, poll_args};

/// How often a process is asked for that has no descriptor: as late as that its end may be noticed. Chosen by
/// magnitude: a hundred calls a second for each cost nothing.
const ASK_PERIOD: Duration = Duration::from_millis(10);
/// How often orphans that came to us are waited for. Chosen by magnitude: they hold a number of a process each, and
/// nothing waits for them.
const REAP_PERIOD: Duration = Duration::from_secs(1);

/// Whether the job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// Ranks were asked to end; they are killed at this time.
    Ending(Instant),
    /// Ranks were killed; what lives at this time is left behind.
    Killed(Instant),
}

/// What poll found.
#[derive(Clone, Copy, Debug)]
enum Ready {
    Broker(Token),
    Pmi(usize),
    Child(usize),
    Output(usize, usize),
    Sink(usize),
    Signals,
    Guard,
}

struct Conductor {
    job: Job,
    ranks: Vec<Rank>,
    broker: Broker,
    pmi: pmi::Server,
    forward: Forward,
    signals: Option<Signals>,
    phase: Phase,
    cause: Option<Cause>,
    messages: Vec<String>,
    began: Instant,
    last_reap: Instant,
    /// When the user is told which ranks live that were killed.
    notice: Option<Instant>,
    /// Signals so far that ask for the end.
    interrupts: usize,
}

/// Runs `job`.
pub(super) fn run(job: Job) -> Result<JobOutcome, LaunchError> {
    if job.ranks == 0 || job.ranks > onecopy::wireup::message::MAX_RANKS as usize {
        return Err(LaunchError::Ranks { ranks: job.ranks });
    }
    let mut conductor = Conductor::start_all(job)?;
    let result = conductor.conduct();
    conductor.clean_up();
    conductor.take_rest();
    result?;
    let cause = conductor.cause.unwrap_or(Cause::Success);
    Ok(JobOutcome {
        code: cause.code(),
        cause,
        ranks: conductor
            .ranks
            .iter()
            .map(|rank| rank.death.unwrap_or(Death::Unknown))
            .collect(),
        messages: conductor.messages,
    })
}

/// A time `after` the given one, or one so late that nobody will see it.
fn later(time: Instant, after: Duration) -> Instant {
    /// Thirty-one years: a sum of times does not overflow.
    const YEARS: Duration = Duration::from_secs(1_000_000_000);
    time + after.min(YEARS)
}

/// Waits for a child that has ended. `false`: it has not, or a signal came.
fn has_ended(pid: Pid) -> bool {
    let waited = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    !matches!(waited, Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
}

/// How a child has ended that is not waited for yet. None: it has not, or a signal came.
fn how_ended(pid: Pid) -> Option<Death> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(pid), flags) {
        Ok(WaitStatus::Exited(_, code)) => Some(Death::Code(code)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(Death::Signal(signal as i32)),
        Ok(_) | Err(Errno::EINTR) => None,
        // Someone else in this process waited for it.
        Err(_) => Some(Death::Unknown),
    }
}

/// Bytes that a pipe holds at most.
fn held_in(pipe: &impl AsFd) -> usize {
    let size = fcntl(pipe, FcntlArg::F_GETPIPE_SZ).ok();
    let size = size.and_then(|size| usize::try_from(size).ok());
    size.unwrap_or(1 << 20)
}

impl Conductor {
    /// Starts all ranks of `job`. If one cannot be started, none is left.
    fn start_all(job: Job) -> Result<Self, LaunchError> {
        process::keep_ends_of_children().map_err(system("take the default action of SIGCHLD"))?;
        let plan = bind::plan(&job.bind, job.ranks, &own_processors())?;
        start::make_room(job.ranks)?;
        if job.exclusive {
            nix::sys::prctl::set_child_subreaper(true).map_err(system("become a subreaper"))?;
        }
        let signals = job.forward_signals.then(Signals::catch).transpose()?;
        let forward = Forward::new(&job.output, job.ranks)?;
        let now = Instant::now();
        let mut conductor = Self {
            ranks: Vec::with_capacity(job.ranks),
            broker: Broker::new(job.join_timeout),
            pmi: pmi::Server::new(job.ranks),
            job,
            forward,
            signals,
            phase: Phase::Running,
            cause: None,
            messages: Vec::new(),
            began: now,
            last_reap: now,
            notice: None,
            interrupts: 0,
        };
        for (rank, processors) in plan.into_iter().enumerate() {
            if let Err(error) = conductor.start(rank, processors) {
                conductor.clean_up();
                return Err(error);
            }
        }
        Ok(conductor)
    }

    /// Starts a rank and connects with it.
    fn start(&mut self, rank: usize, processors: Option<CpuSet>) -> Result<(), LaunchError> {
        let (started, sockets) = start::start(&mut self.job, rank, processors)?;
        let (pid, pidfd) = (started.pid, started.pidfd.clone());
        self.broker.add(sockets.broker, pid, pidfd);
        self.pmi.add(sockets.pmi);
        self.ranks.push(started);
        if let Some(on_start) = &mut self.job.on_start {
            on_start(rank, pid.as_raw());
        }
        Ok(())
    }

    /// Until all ranks have ended and their output is read, or were killed and do not end.
    fn conduct(&mut self) -> Result<(), LaunchError> {
        let mut over_since = None;
        loop {
            let now = Instant::now();
            self.look_after(now);
            let was_killed = matches!(self.phase, Phase::Killed(_));
            if self.ranks.iter().all(|rank| rank.death.is_some()) {
                // Something in the background may still be writing: a moment for that.
                let since = *over_since.get_or_insert(now);
                let reading = self.ranks.iter().flat_map(|rank| &rank.streams);
                let writers = reading.flatten().next().is_some();
                if !writers || was_killed || now >= later(since, self.job.grace) {
                    return Ok(());
                }
            } else if was_killed && self.phase_deadline().is_some_and(|due| now >= due) {
                return Ok(());
            }
            let limit = over_since.map(|since| later(since, self.job.grace));
            for ready in self.wait(now, limit)? {
                self.serve(ready);
            }
        }
    }

    /// Does what is due without anything being ready.
    fn look_after(&mut self, now: Instant) {
        for rank in 0..self.ranks.len() {
            if self.ranks[rank].pidfd.is_none() {
                self.ask_for_end(rank);
            }
        }
        for notice in self.broker.tick(now) {
            self.handle_notice(notice);
        }
        for notice in self.pmi.notices() {
            self.handle_pmi_notice(notice);
        }
        if self.phase_deadline().is_some_and(|due| now >= due) {
            self.end_phase();
        }
        if self.notice.take_if(|due| now >= *due).is_some() {
            let living = |&rank: &usize| {
                let found = &self.ranks[rank];
                found.death.is_none() && how_ended(found.pid).is_none()
            };
            let living: Vec<usize> = (0..self.ranks.len()).filter(living).collect();
            self.say_living("waiting for", &living);
        }
        if self.job.exclusive && now >= self.last_reap + REAP_PERIOD {
            self.last_reap = now;
            let ours: Vec<_> = self.ranks.iter().map(|rank| rank.pid).collect();
            sweep::reap(&ours);
        }
    }

    /// Sleeps until something is ready or due.
    fn wait(&self, now: Instant, limit: Option<Instant>) -> Result<Vec<Ready>, LaunchError> {
        let watched = self.watched();
        let mut fds: Vec<PollFd<'_>> = watched
            .iter()
            .map(|&(fd, flags, _)| PollFd::new(fd, flags))
            .collect();
        match poll(&mut fds, poll_args::timeout(now, self.due(now, limit))) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Vec::new()),
            Err(errno) => return Err(system("poll")(errno)),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let ready = watched.iter().zip(&fds).filter(|(_, fd)| is_ready(fd));
        Ok(ready.map(|((_, _, found), _)| *found).collect())
    }

    /// The descriptors to poll, and what each means when it is ready.
    fn watched(&self) -> Vec<(BorrowedFd<'_>, PollFlags, Ready)> {
        let mut watched = Vec::new();
        let mut watch = |fd, flags, ready| watched.push((fd, flags, ready));
        // Children come first: a rank's exit status should be known before the end of its connection is judged.
        for (number, rank) in self.ranks.iter().enumerate() {
            if let (None, Some(pidfd)) = (rank.death, &rank.pidfd) {
                watch(pidfd.as_fd(), PollFlags::POLLIN, Ready::Child(number));
            }
            for (which, stream) in rank.streams.iter().enumerate() {
                if let (Some(stream), false) = (stream, self.forward.is_full(which)) {
                    let ready = Ready::Output(number, which);
                    watch(stream.as_fd(), PollFlags::POLLIN, ready);
                }
            }
        }
        for polled in self.broker.polled() {
            watch(polled.fd, polled.flags(), Ready::Broker(polled.token));
        }
        for polled in self.pmi.polled() {
            watch(polled.fd, polled.flags(), Ready::Pmi(polled.token));
        }
        for (which, fd) in self.forward.pending() {
            watch(fd, PollFlags::POLLOUT, Ready::Sink(which));
        }
        if let Some(signals) = &self.signals {
            watch(signals.fd.as_fd(), PollFlags::POLLIN, Ready::Signals);
        }
        if let (Some(guard), Phase::Running | Phase::Ending(_)) = (&self.job.guard, self.phase) {
            watch(guard.as_fd(), PollFlags::POLLIN, Ready::Guard);
        }
        watched
    }

    /// When this phase of the job has lasted as long as it may.
    fn phase_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.job.timeout.map(|limit| later(self.began, limit)),
            Phase::Ending(deadline) | Phase::Killed(deadline) => Some(deadline),
        }
    }

    /// The phase has lasted as long as it may.
    fn end_phase(&mut self) {
        match self.phase {
            Phase::Running => {
                let limit = self.job.timeout.unwrap_or_default().as_secs_f64();
                self.say(&format!(
                    "the job has run for {limit} s: timeout; ending the job"
                ));
                self.end(Cause::Timeout);
            }
            Phase::Ending(_) => self.kill_ranks(),
            // See `conduct`.
            Phase::Killed(_) => {}
        }
    }

    /// When there is something to do without anything being ready.
    fn due(&self, now: Instant, limit: Option<Instant>) -> Option<Instant> {
        let asking = self
            .ranks
            .iter()
            .any(|rank| rank.death.is_none() && rank.pidfd.is_none());
        let due = [
            limit,
            self.broker.deadline(),
            self.phase_deadline(),
            self.notice,
            asking.then(|| now + ASK_PERIOD),
            self.job.exclusive.then(|| self.last_reap + REAP_PERIOD),
        ];
        due.into_iter().flatten().min()
    }

    fn serve(&mut self, ready: Ready) {
        match ready {
            Ready::Child(rank) => self.ask_for_end(rank),
            Ready::Output(rank, which) => {
                self.read_output(rank, which);
            }
            Ready::Broker(token) => self.broker.ready(token, Instant::now()),
            Ready::Pmi(rank) => self.pmi.ready(rank),
            Ready::Sink(which) => {
                if self.forward.write_some(which) {
                    if let Some(cause) = self.lost_output() {
                        self.fail(cause);
                    }
                    // Nobody reads our output: let the ranks see that, as in any pipeline.
                    for rank in &mut self.ranks {
                        rank.streams[which] = None;
                    }
                }
            }
            Ready::Signals => self.take_signals(),
            Ready::Guard => {
                self.cause.get_or_insert(Cause::GuardianLost);
                self.kill_ranks();
            }
        }
    }

    /// Has this rank's process ended? It is not waited for yet: its number stays its own until the end of the job.
    fn ask_for_end(&mut self, rank: usize) {
        if self.ranks[rank].death.is_some() {
            return;
        }
        let Some(death) = how_ended(self.ranks[rank].pid) else {
            return;
        };
        self.ranks[rank].death = Some(death);
        if death != Death::Code(0) && self.phase == Phase::Running {
            let pid = self.ranks[rank].pid;
            let next = self.consequence();
            if self.cause.is_none() || self.job.keep_going {
                self.say(&format!("rank {rank} (pid {pid}) {death}; {next}"));
            }
            self.fail(Cause::Rank { rank, death });
        }
        self.broker.child_ended(rank, death, Instant::now());
        self.pmi.ended(rank);
        if self.ranks[rank].deserted {
            self.deserted(rank);
        }
    }

    fn consequence(&self) -> &'static str {
        let others = self.ranks.iter().any(|rank| rank.death.is_none());
        match (others, self.job.keep_going) {
            (false, _) => "no rank is left",
            (true, true) => "the others go on",
            (true, false) => "ending the job",
        }
    }

    fn handle_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Abort { rank, code } => {
                self.say(&format!("rank {rank} aborted the job with code {code}"));
                self.end(Cause::Abort { rank, code });
            }
            Notice::Complaint { rank, text } => {
                self.say(&format!(
                    "rank {rank}: {text}; closed its connection to the job"
                ));
            }
            Notice::GaveUp { missing, waited } => {
                let why = match waited {
                    Some(time) => format!("did not join within {} s", time.as_secs_f32().round()),
                    None => "cannot join any more".to_owned(),
                };
                self.say(&format!(
                    "{} {why}; {}",
                    self.name(&missing),
                    self.consequence()
                ));
                self.fail(Cause::NotJoined);
            }
            Notice::Deserted { rank } => self.deserted(rank),
        }
    }

    /// A rank has ended, or given up its connection, without a word that it leaves: its part is missing, whatever its
    /// exit code says. Any other code than 0 was reported already.
    fn deserted(&mut self, rank: usize) {
        match self.ranks[rank].death {
            // A wrapper may still report how its program ended.
            None => self.ranks[rank].deserted = true,
            Some(Death::Code(0)) if self.phase == Phase::Running => {
                let why = "has left the job without finalizing (MPI_Finalize)";
                self.desert(rank, why, Cause::Deserted { rank });
            }
            Some(_) => {}
        }
    }

    fn handle_pmi_notice(&mut self, notice: pmi::Notice) {
        match notice {
            pmi::Notice::Abort { rank, code } => self.handle_notice(Notice::Abort { rank, code }),
            pmi::Notice::Complaint { rank, text } => {
                self.handle_notice(Notice::Complaint { rank, text });
            }
            pmi::Notice::Stuck { missing } if self.phase == Phase::Running => {
                self.desert(
                    missing,
                    "cannot come to the PMI barrier that others wait in",
                    Cause::NotJoined,
                );
            }
            pmi::Notice::Deserted { rank } => self.deserted(rank),
            pmi::Notice::Stuck { .. } => {}
        }
    }

    /// A rank's end would leave others waiting.
    fn desert(&mut self, rank: usize, why: &str, cause: Cause) {
        let missing = [Missing {
            rank,
            running: false,
        }];
        self.say(&format!(
            "{} {why}; {}",
            self.name(&missing),
            self.consequence()
        ));
        self.fail(cause);
    }

    /// `rank 1 (pid 17, still running), rank 3 (pid 18, exited with code 0)`
    fn name(&self, missing: &[Missing]) -> String {
        let one = |missing: &Missing| {
            let found = &self.ranks[missing.rank];
            let state = match found.death {
                Some(death) => death.to_string(),
                None => "still running".to_owned(),
            };
            format!("rank {} (pid {}, {state})", missing.rank, found.pid)
        };
        let mut parts: Vec<String> = missing.iter().take(8).map(one).collect();
        if missing.len() > 8 {
            parts.push(format!("and {} others", missing.len() - 8));
        }
        parts.join(", ")
    }

    fn fail(&mut self, cause: Cause) {
        if self.job.keep_going {
            self.cause.get_or_insert(cause);
        } else {
            self.end(cause);
        }
    }

    /// Asks all ranks to end.
    fn end(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
        if self.phase == Phase::Running {
            self.phase = Phase::Ending(later(Instant::now(), self.job.grace));
            self.ask_ranks(Signal::SIGTERM);
        }
    }

    /// A signal that asks for the end: one that is stopped would not notice without another one.
    fn ask_ranks(&mut self, signal: Signal) {
        self.signal_ranks(signal);
        self.signal_ranks(Signal::SIGCONT);
    }

    fn kill_ranks(&mut self) {
        if !matches!(self.phase, Phase::Killed(_)) {
            let now = Instant::now();
            self.phase = Phase::Killed(later(now, PATIENCE));
            self.notice = Some(now + NOTICE);
        }
        self.send_kill();
    }

    /// To every rank's process group, and to ranks that have changed to another one.
    fn send_kill(&mut self) {
        self.signal_ranks(Signal::SIGKILL);
        for rank in 0..self.ranks.len() {
            if self.ranks[rank].death.is_none()
                && kill(self.ranks[rank].pid, Signal::SIGKILL) == Err(Errno::EPERM)
            {
                self.tell_of_refusal(rank);
            }
        }
    }

    /// To every rank's process group. None of the ranks was waited for, so the groups are still theirs.
    fn signal_ranks(&mut self, signal: Signal) {
        for rank in 0..self.ranks.len() {
            // ESRCH: the group is empty.
            if killpg(self.ranks[rank].pid, signal) == Err(Errno::EPERM) {
                self.tell_of_refusal(rank);
            }
        }
    }

    /// A signal was refused. If it was the rank's own, the user is told once: nobody else can end it.
    fn tell_of_refusal(&mut self, rank: usize) {
        let found = &mut self.ranks[rank];
        let pid = found.pid;
        if !found.refusal_said && how_ended(pid).is_none() && obstacle::is_refused(pid) {
            found.refusal_said = true;
            let why = obstacle::refusal(pid);
            self.say(&format!("rank {rank} (pid {pid}) gets no signal: {why}"));
        }
    }

    /// Names ranks that live though the job is over, and why.
    fn say_living(&mut self, what: &str, living: &[usize]) {
        let named = |&rank: &usize| {
            let pid = self.ranks[rank].pid;
            (format!("rank {rank} (pid {pid})"), pid)
        };
        let named: Vec<_> = living.iter().map(named).collect();
        obstacle::tell(what, "ranks", &named, |text| self.say(text));
    }

    fn take_signals(&mut self) {
        while let Some(Ok(Some(info))) = self
            .signals
            .as_ref()
            .map(|signals| signals.fd.read_signal())
        {
            let number = info.ssi_signo.cast_signed();
            let Ok(signal) = Signal::try_from(number) else {
                continue;
            };
            if !ENDING.contains(&signal) {
                self.signal_ranks(signal);
                continue;
            }
            self.interrupts += 1;
            if self.interrupts == 1 {
                self.ask_ranks(signal);
            } else {
                self.say(&format!("second {signal}: killing all ranks"));
                self.cause
                    .get_or_insert(Cause::Interrupted { signal: number });
                self.kill_ranks();
            }
        }
    }

    /// Reads what is there; false at the end of the stream.
    fn read_output(&mut self, rank: usize, which: usize) -> bool {
        let stream = &mut self.ranks[rank].streams[which];
        let output = &mut self.job.output;
        self.forward.read(output, (rank, which), stream)
    }

    /// What ranks left in their pipes. Nobody writes any more, or somebody that has left its rank's group and is not
    /// waited for. That one may write for ever, so no more is read than a pipe holds.
    fn take_rest(&mut self) {
        for rank in 0..self.ranks.len() {
            for which in 0..2 {
                let held = self.ranks[rank].streams[which].as_ref().map_or(0, held_in);
                let mut reads = 0..=held.div_ceil(BLOCK);
                while reads.next().is_some()
                    && let Some(stream) = &self.ranks[rank].streams[which]
                {
                    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
                    let some = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0);
                    if !some || !self.read_output(rank, which) {
                        break;
                    }
                }
                self.forward.finish(&mut self.job.output, (rank, which));
            }
        }
        self.forward.write_all();
        // The ranks are gone, and their numbers may be others' by now: there is nobody to end.
        if let Some(cause) = self.lost_output() {
            self.cause.get_or_insert(cause);
        }
        // What was just said about one of them goes to the other.
        self.forward.write_all();
    }

    /// A reader that has gone is usual in a pipeline. Output that could not be written for another reason is missed by
    /// somebody: the job fails.
    fn lost_output(&mut self) -> Option<Cause> {
        let mut cause = None;
        for which in 0..2 {
            let Some(error) = self.forward.take_error(which) else {
                continue;
            };
            let name = ["output", "error"][which];
            self.say(&format!(
                "standard {name} cannot be written: {error}; some of what the ranks wrote is lost"
            ));
            let errno = error.raw_os_error().unwrap_or(0);
            cause = cause.or(Some(Cause::OutputLost { errno }));
        }
        cause
    }

    /// Kills what is left and waits for it, as long as a machine takes that works. Names ranks that do not end.
    fn clean_up(&mut self) {
        self.send_kill();
        let until = match self.phase {
            Phase::Killed(until) => until,
            Phase::Running | Phase::Ending(_) => later(Instant::now(), PATIENCE),
        };
        let mut left: Vec<usize> = (0..self.ranks.len()).collect();
        loop {
            left.retain(|&rank| !has_ended(self.ranks[rank].pid));
            if left.is_empty() || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.say_living("left behind", &left);
        if self.job.exclusive {
            let left: Vec<_> = left.iter().map(|&rank| self.ranks[rank].pid).collect();
            sweep::kill_descendants(&left, |text| self.say(text));
            return;
        }
        // What ranks left in their groups was killed, but somebody else waits for it: shortly see to it that it is
        // gone.
        let start = Instant::now();
        for rank in &self.ranks {
            while killpg(rank.pid, None).is_ok() && start.elapsed() < Duration::from_millis(500) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// A line to standard error.
    fn say(&mut self, text: &str) {
        let line = format!("onecopy run: {text}\n");
        self.messages.push(text.to_owned());
        if !self.job.quiet {
            self.forward.say(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one that waits for a device: what was sent to it does nothing, and its time is over.
    #[test]
    fn a_rank_that_cannot_be_killed_is_waited_for_no_longer() {
        let job = Job::new("sleep", 2).arg("60").quiet(true);
        let mut conductor = Conductor::start_all(job).expect("two ranks");
        let now = Instant::now();
        (conductor.phase, conductor.notice) = (Phase::Killed(now), Some(now));
        conductor.conduct().expect("an end");
        assert!(conductor.ranks.iter().all(|rank| rank.death.is_none()));
        // The user is told at once who is waited for.
        for (number, rank) in conductor.ranks.iter().enumerate() {
            let name = format!("waiting for: rank {number} (pid {}): ", rank.pid);
            let said = &conductor.messages[number];
            assert!(said.starts_with(&name) && said.contains("state "), "{said}");
        }
        // That kills them.
        conductor.phase = Phase::Running;
        conductor.clean_up();
        assert_eq!(conductor.messages.len(), 2, "{:?}", conductor.messages);
    }
}
