// SPDX-License-Identifier: MIT OR Apache-2.0
//! What rank 0 does for the others when a foreign launcher started the job: a thread that lets them in and introduces
//! them, as our launcher does for its own ranks, by the same [`Broker`].
//!
//! The thread sleeps unless a rank talks to it. It ends when nobody is connected any more, or with the process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow};
use onecopy_shm::fdpass::{self, FdPassError, Wait};
use onecopy_shm::process;

use super::WireupError;
use super::broker::{Broker, Notice, Source};
use super::meet::Door;
use super::message::{MAX_MESSAGE, ToLauncher, ToRank};

/// Rank 0 introduces the others.
pub(super) const HOST: usize = 0;

/// Enough for the event loop; the default would be address space for nothing.
const STACK: usize = 512 << 10;
/// How long rank 0 waits for its own departure to be told to the others.
const TELL_LIMIT: Duration = Duration::from_secs(1);

/// What the host is to do.
#[derive(Debug)]
pub(super) struct Plan {
    /// Ranks in the job.
    pub(super) size: usize,
    /// What a rank must say to be let in.
    pub(super) secret: [u8; 16],
    /// How long ranks that have joined wait for the others.
    pub(super) join_timeout: Duration,
    /// Where ranks connect.
    pub(super) doors: Vec<Door>,
    /// The name of one more door, in a file system, and after which time it is opened if ranks are missing still.
    pub(super) late: Option<(Duration, String)>,
}

/// The thread, as rank 0 sees it.
#[derive(Debug)]
pub(super) struct Host {
    told: Receiver<()>,
}

impl Host {
    /// Starts the thread; returns it and rank 0's own connection.
    pub(super) fn start(plan: Plan) -> Result<(Self, OwnedFd), WireupError> {
        const CALL: &str = "join";
        let system = |what| {
            move |source| WireupError::System {
                call: CALL,
                what,
                source,
            }
        };
        let transport = |source| WireupError::Transport { call: CALL, source };
        let (socket, own) = fdpass::pair().map_err(transport)?;
        fdpass::ask_for_credentials(socket.as_fd()).map_err(transport)?;
        let mut broker = Broker::new(plan.join_timeout);
        broker.make_room(plan.size);
        let who = fdpass::peer_credentials(socket.as_fd()).map_err(transport)?;
        let itself = process::peer_process(socket.as_fd()).map(Arc::new);
        broker.seat(HOST, socket, who, itself);
        let (tell, told) = channel();
        let now = Instant::now();
        let mut thread = Thread {
            broker,
            secret: plan.secret,
            size: plan.size,
            patience: plan.join_timeout,
            doors: plan.doors,
            late: plan
                .late
                .map(|(delay, name)| (now.checked_add(delay).unwrap_or(now), name)),
            guests: VecDeque::new(),
            tell: Some(tell),
            aborted: false,
            buffer: vec![0; MAX_MESSAGE],
        };
        // The program's signals are not for this thread: it inherits the mask.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let started = std::thread::Builder::new()
            .name("onecopy-host".to_owned())
            .stack_size(STACK)
            .spawn(move || thread.serve());
        if let Ok(before) = before {
            // Fails only for a mask that does not exist.
            let _ = before.thread_set_mask();
        }
        started.map_err(system("start the thread that introduces ranks"))?;
        Ok((Self { told }, own))
    }

    /// Waits until the others were told that rank 0 has left or aborts the job.
    pub(super) fn wait_until_told(&self) {
        // If the thread has ended, nobody is left to be told.
        let _ = self.told.recv_timeout(TELL_LIMIT);
    }
}

/// A connection that has not said yet which rank it is.
struct Guest {
    socket: OwnedFd,
    since: Instant,
}

struct Thread {
    broker: Broker,
    secret: [u8; 16],
    size: usize,
    patience: Duration,
    doors: Vec<Door>,
    late: Option<(Instant, String)>,
    guests: VecDeque<Guest>,
    tell: Option<Sender<()>>,
    aborted: bool,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Ready {
    Door(usize),
    Guest(usize),
    Broker(Source),
}

impl Thread {
    fn serve(&mut self) {
        loop {
            let now = Instant::now();
            self.look_after(now);
            if self.broker.is_deserted() {
                return;
            }
            let ready = self.wait(now);
            // Guests come from the last to the first, so that the numbers of those who are still to be served stay
            // right.
            for ready in ready.into_iter().rev() {
                match ready {
                    Ready::Broker(source) => self.broker.ready(source, Instant::now()),
                    Ready::Guest(number) => self.hear(number),
                    Ready::Door(number) => self.let_in(number),
                }
            }
        }
    }

    fn look_after(&mut self, now: Instant) {
        for notice in self.broker.tick(now) {
            match notice {
                Notice::Abort { .. } => self.aborted = true,
                Notice::Complaint { rank, text } => {
                    tracing::warn!("rank {rank}: {text}; closed its connection to the job");
                }
                // Ranks are told; each says so itself. How a process ended is the launcher's to say.
                Notice::GaveUp { .. } | Notice::Deserted { .. } => {}
            }
        }
        if (self.aborted || self.broker.is_out(HOST)) && self.broker.nothing_to_send() {
            // Who waits for it may have given up.
            let _ = self.tell.take().map(|tell| tell.send(()));
        }
        if self.broker.is_settled() {
            self.doors.clear();
            self.guests.clear();
            self.late = None;
        }
        if let Some((_, name)) = self.late.take_if(|(at, _)| *at <= now) {
            match Door::at_path(&name) {
                Ok(door) => self.doors.push(door),
                Err(error) => tracing::warn!(
                    "no way in for ranks of other network namespaces: a socket below /dev/shm or /tmp: {error}"
                ),
            }
        }
        let patience = self.patience;
        self.guests
            .retain(|guest| now.duration_since(guest.since) < patience);
    }

    fn wait(&self, now: Instant) -> Vec<Ready> {
        let mut fds = Vec::new();
        let mut tokens = Vec::new();
        let mut watch = |fd, flags, token| {
            fds.push(PollFd::new(fd, flags));
            tokens.push(token);
        };
        // A crowd of strangers is not let in.
        if self.guests.len() < 2 * self.size + 16 {
            for (number, door) in self.doors.iter().enumerate() {
                watch(door.as_fd(), PollFlags::POLLIN, Ready::Door(number));
            }
        }
        for (number, guest) in self.guests.iter().enumerate() {
            let fd: BorrowedFd<'_> = guest.socket.as_fd();
            watch(fd, PollFlags::POLLIN, Ready::Guest(number));
        }
        for (source, fd, read, write) in self.broker.sources() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, read);
            flags.set(PollFlags::POLLOUT, write);
            watch(fd, flags, Ready::Broker(source));
        }
        let guests = self.guests.iter().map(|guest| guest.since + self.patience);
        let late = self.late.as_ref().map(|(at, _)| *at);
        let due = guests.chain(late).chain(self.broker.deadline()).min();
        let timeout = due.map_or(PollTimeout::NONE, |at| {
            // Rounded up, so that what is due then is due when we wake.
            let left = at.saturating_duration_since(now).as_micros().div_ceil(1000);
            PollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX))
                .unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            // Out of memory: nothing can be done but to try again, not too often.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        let ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let found = tokens.into_iter().zip(ready);
        found
            .filter_map(|(token, ready)| ready.then_some(token))
            .collect()
    }

    fn let_in(&mut self, door: usize) {
        let Some(socket) = self.doors.get(door).and_then(Door::accept) else {
            return;
        };
        let own = nix::unistd::getuid().as_raw();
        // A stranger: the connection is closed without a word.
        let known = fdpass::peer_credentials(socket.as_fd()).is_ok_and(|who| who.uid == own);
        if known && fdpass::ask_for_credentials(socket.as_fd()).is_ok() {
            self.guests.push_back(Guest {
                socket,
                since: Instant::now(),
            });
        }
    }

    fn hear(&mut self, number: usize) {
        let Some(guest) = self.guests.get(number) else {
            return;
        };
        let got = fdpass::recv(guest.socket.as_fd(), &mut self.buffer, 0, Wait::Never);
        if matches!(got, Err(FdPassError::WouldBlock)) {
            return;
        }
        let Some(guest) = self.guests.remove(number) else {
            return;
        };
        let Ok(got) = got else {
            return;
        };
        let verdict = match ToLauncher::decode(&self.buffer[..got.len]) {
            Ok(ToLauncher::Hello { rank, size, secret }) => self
                .judge(rank as usize, size as usize, secret)
                .map(|()| rank as usize),
            Ok(_) => Err("a hello was expected".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match (verdict, fdpass::peer_credentials(guest.socket.as_fd())) {
            (Ok(rank), Ok(who)) => {
                let process = process::peer_process(guest.socket.as_fd()).map(Arc::new);
                self.broker.seat(rank, guest.socket, who, process);
                self.broker.welcome(rank);
            }
            (Ok(_), Err(_)) => {}
            (Err(reason), _) => {
                let message = ToRank::Refused { reason }.encode();
                // Who does not take the answer is not waited for.
                let _ = fdpass::send(guest.socket.as_fd(), &message, &[], Wait::Never);
            }
        }
    }

    fn judge(&self, rank: usize, size: usize, secret: [u8; 16]) -> Result<(), String> {
        // Every byte is looked at, whether those before it were right or not.
        let differing = secret.iter().zip(&self.secret);
        if differing.fold(0, |found, (a, b)| found | (a ^ b)) != 0 {
            return Err("not the secret of this job".to_owned());
        }
        if size != self.size || rank >= size {
            let own = self.size;
            return Err(format!(
                "rank {rank} of {size} does not belong to this job of {own}"
            ));
        }
        if !self.broker.is_vacant(rank) {
            return Err(format!("rank {rank} has come already"));
        }
        Ok(())
    }
}
