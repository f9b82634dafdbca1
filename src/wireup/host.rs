// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the lowest rank of a node does for the others there when a foreign launcher started the job. A thread lets them
//! in and introduces them, as our launcher does for its own ranks, by the same [`Broker`]. In a job that spans nodes
//! the threads are joined by [`Oob`].
//!
//! The thread sleeps until something comes. It ends when no rank is connected any more, or with the process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use onecopy_shm::fdpass::{self, FdPassError, Wait};
use onecopy_shm::{process, thread};

use super::WireupError;
use super::broker::{Broker, Notice, Token};
use super::meet::Listener;
use super::message::{MAX_MESSAGE, ToLauncher, ToRank};
use super::oob::{self, Oob, OobEvent, OobToken, ToHost};
use super::poll_args;

/// The rank that others look for first: it introduces those of its node, and its host joins all nodes.
pub(super) const FIRST: usize = 0;

/// Enough for the event loop; the default would be address space for nothing. A fourth of that default, chosen by
/// magnitude.
const STACK: usize = 512 << 10;
/// How long a host waits for its own departure to be announced to the others. Chosen by magnitude: a connection that is
/// in order takes some round trips. It is also the default of `ONECOPY_NODE_TIMEOUT`.
const ANNOUNCE_LIMIT: Duration = Duration::from_secs(1);

/// What the host is to do.
#[derive(Debug)]
pub(super) struct Config {
    /// The host's own rank.
    pub(super) rank: usize,
    /// Ranks in the job.
    pub(super) size: usize,
    /// What a rank must send to be let in.
    pub(super) secret: [u8; 16],
    /// How long ranks that have joined wait for the others.
    pub(super) join_timeout: Duration,
    /// Where ranks connect.
    pub(super) listeners: Vec<Listener>,
    /// The name of one more listener, in a file system, and after which time it is opened if ranks are missing still.
    pub(super) late: Option<(Duration, String)>,
    /// In a job that spans nodes: how this host is joined to others.
    pub(super) oob: Option<oob::Config>,
}

/// The thread, as its rank sees it.
#[derive(Debug)]
pub(super) struct Host {
    announced: Receiver<()>,
    /// Ends with the thread; none in a job of one node, where no rank waits for that.
    over: Option<Receiver<()>>,
}

/// A host that was started.
#[derive(Debug)]
pub(super) struct StartedHost {
    pub(super) host: Host,
    /// The connection of its own rank.
    pub(super) socket: OwnedFd,
}

impl Host {
    /// Starts the thread.
    pub(super) fn start(config: Config) -> Result<StartedHost, WireupError> {
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
        let mut broker = Broker::new(config.join_timeout);
        broker.make_room(config.size);
        let who = fdpass::peer_credentials(socket.as_fd()).map_err(transport)?;
        let itself = process::peer_process(socket.as_fd()).map(Arc::new);
        broker.seat(config.rank, socket, who, itself);
        broker.runs_in(config.rank);
        let (sender, announced) = channel();
        let now = Instant::now();
        if let Some(oob) = &config.oob {
            broker.serve_node(Arc::clone(&oob.nodes), oob.own);
        }
        let oob = config.oob.map(|oob| Oob::new(oob, now)).transpose();
        let oob = oob.map_err(system("the connection to rank 0's node"))?;
        let (running, over) = channel();
        let over = oob.is_some().then_some(over);
        let mut broker_thread = Thread {
            broker,
            own: config.rank,
            secret: config.secret,
            size: config.size,
            join_timeout: config.join_timeout,
            listeners: config.listeners,
            late: config
                .late
                .map(|(delay, name)| (now.checked_add(delay).unwrap_or(now), name)),
            inbound: VecDeque::new(),
            oob,
            announced: Some(sender),
            aborted: false,
            buffer: vec![0; MAX_MESSAGE],
            _running: running,
        };
        let started = thread::start("onecopy-host", STACK, move || broker_thread.serve());
        started.map_err(system("start the thread that introduces ranks"))?;
        Ok(StartedHost {
            host: Self { announced, over },
            socket: own,
        })
    }

    /// Waits until this rank's departure, or its abort of the job, was announced to the others.
    pub(super) fn wait_until_announced(&self) {
        // If the thread has ended, no rank is left to be notified.
        let _ = self.announced.recv_timeout(ANNOUNCE_LIMIT);
    }

    /// In a job that spans nodes, waits until all ranks that hear of other nodes by this thread are out of the job. The
    /// end of this process would be the end of their node.
    pub(super) fn wait_until_over(&self) {
        // Nothing is ever sent.
        let _ = self.over.as_ref().map(Receiver::recv);
    }
}

/// A connection that has not sent its rank yet.
struct Inbound {
    socket: OwnedFd,
    since: Instant,
}

struct Thread {
    broker: Broker,
    own: usize,
    secret: [u8; 16],
    size: usize,
    join_timeout: Duration,
    listeners: Vec<Listener>,
    late: Option<(Instant, String)>,
    inbound: VecDeque<Inbound>,
    oob: Option<Oob>,
    announced: Option<Sender<()>>,
    aborted: bool,
    buffer: Vec<u8>,
    /// Dropped with this.
    _running: Sender<()>,
}

#[derive(Clone, Copy)]
enum Ready {
    Listener(usize),
    Inbound(usize),
    Broker(Token),
    Oob(OobToken),
}

impl Thread {
    fn serve(&mut self) {
        loop {
            let now = Instant::now();
            self.look_after(now);
            let over = match &mut self.oob {
                None => self.broker.is_deserted(),
                // The ranks here need no more than to be out: one of them waits for this end.
                Some(oob) => self.broker.all_are_out() && oob.leave(now),
            };
            if over {
                return;
            }
            let ready = self.wait(now);
            // Served from the last to the first. One that ends is removed from the list of inbound connections, which
            // moves those behind it to other numbers.
            for ready in ready.into_iter().rev() {
                match ready {
                    Ready::Broker(token) => self.broker.ready(token, Instant::now()),
                    Ready::Oob(token) => {
                        let now = Instant::now();
                        let oob = self.oob.as_mut();
                        let events = oob.map(|oob| oob.ready(token, now)).unwrap_or_default();
                        self.take(events, now);
                    }
                    Ready::Inbound(number) => self.hear(number),
                    Ready::Listener(number) => self.let_in(number),
                }
            }
        }
    }

    /// Takes what the out-of-band connections have brought.
    fn take(&mut self, events: Vec<OobEvent>, now: Instant) {
        let mut over = Vec::new();
        for event in events {
            let (node, why) = match event {
                OobEvent::Message(node, _) | OobEvent::Lost(node, _) if over.contains(&node) => {
                    continue;
                }
                // A rank that has not left by now lives no more.
                OobEvent::Message(node, ToHost::Farewell) => (node, None),
                OobEvent::Message(node, message) => match self.broker.hear(node, message, now) {
                    Ok(()) => continue,
                    Err(text) => (node, Some(text)),
                },
                OobEvent::Lost(node, end) => (node, Some(end.to_string())),
            };
            if let Some(oob) = &mut self.oob {
                oob.remove(node);
            }
            if let Some(why) = why.filter(|_| !self.broker.all_are_out()) {
                tracing::warn!("node {node} is lost: {why}");
            }
            self.broker.lose_node(node);
            over.push(node);
        }
    }

    fn look_after(&mut self, now: Instant) {
        let oob = self.oob.as_mut();
        let events = oob.map(|oob| oob.tick(now)).unwrap_or_default();
        self.take(events, now);
        for notice in self.broker.tick(now) {
            match notice {
                Notice::Abort { .. } => self.aborted = true,
                Notice::Complaint { rank, text } => {
                    tracing::warn!("rank {rank}: {text}; closed its connection to the job");
                }
                // Ranks are notified, and each reports it. How a process ended is for the launcher to report.
                Notice::GaveUp { .. } | Notice::Deserted { .. } => {}
            }
        }
        let messages = self.broker.messages();
        if let Some(oob) = &mut self.oob {
            for one in messages {
                oob.broadcast(one.about, &one.message, now);
            }
        }
        let flushed = self.oob.as_ref().is_none_or(Oob::is_flushed);
        let delivered = flushed && self.broker.nothing_to_send();
        if (self.aborted || self.broker.is_out(self.own)) && delivered {
            // The rank that waits for it may have given up.
            let _ = self.announced.take().map(|sender| sender.send(()));
        }
        if let Some(since) = self.broker.held_since()
            && (delivered || now >= since + ANNOUNCE_LIMIT)
        {
            self.broker.release();
        }
        if self.broker.is_settled() {
            self.listeners.clear();
            self.inbound.clear();
            self.late = None;
            if let Some(oob) = &mut self.oob {
                oob.stop_accepting();
            }
        }
        if let Some((_, name)) = self.late.take_if(|(due, _)| *due <= now) {
            match Listener::at_path(&name) {
                Ok(listener) => self.listeners.push(listener),
                Err(error) => tracing::warn!(
                    "no way in for ranks of other network namespaces: a socket below /dev/shm or /tmp: {error}"
                ),
            }
        }
        let join_timeout = self.join_timeout;
        self.inbound
            .retain(|one| now.duration_since(one.since) < join_timeout);
    }

    fn wait(&self, now: Instant) -> Vec<Ready> {
        let mut fds = Vec::new();
        let mut tokens = Vec::new();
        let mut watch = |fd, flags, token| {
            fds.push(PollFd::new(fd, flags));
            tokens.push(token);
        };
        // A crowd of strangers is not let in.
        if self.inbound.len() < 2 * self.size + 16 {
            for (number, listener) in self.listeners.iter().enumerate() {
                watch(listener.as_fd(), PollFlags::POLLIN, Ready::Listener(number));
            }
        }
        for (number, one) in self.inbound.iter().enumerate() {
            let fd: BorrowedFd<'_> = one.socket.as_fd();
            watch(fd, PollFlags::POLLIN, Ready::Inbound(number));
        }
        for polled in self.broker.polled() {
            watch(polled.fd, polled.flags(), Ready::Broker(polled.token));
        }
        for polled in self.oob.iter().flat_map(Oob::polled) {
            watch(polled.fd, polled.flags(), Ready::Oob(polled.token));
        }
        let inbound = self.inbound.iter().map(|one| one.since + self.join_timeout);
        let late = self.late.as_ref().map(|(due, _)| *due);
        let oob = self.oob.as_ref().and_then(Oob::due);
        let held = self.broker.held_since();
        let held = held.map(|since| since + ANNOUNCE_LIMIT);
        let due = inbound.chain(late).chain(oob).chain(held);
        let due = due.chain(self.broker.deadline()).min();
        match poll(&mut fds, poll_args::timeout(now, due)) {
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

    fn let_in(&mut self, listener: usize) {
        let Some(socket) = self.listeners.get(listener).and_then(Listener::accept) else {
            return;
        };
        let own = nix::unistd::getuid().as_raw();
        // A stranger: the connection is closed without a word.
        let known = fdpass::peer_credentials(socket.as_fd()).is_ok_and(|who| who.uid == own);
        if known && fdpass::ask_for_credentials(socket.as_fd()).is_ok() {
            self.inbound.push_back(Inbound {
                socket,
                since: Instant::now(),
            });
        }
    }

    fn hear(&mut self, number: usize) {
        let Some(one) = self.inbound.get(number) else {
            return;
        };
        let got = fdpass::recv(one.socket.as_fd(), &mut self.buffer, 0, Wait::Never);
        if matches!(got, Err(FdPassError::WouldBlock)) {
            return;
        }
        let Some(one) = self.inbound.remove(number) else {
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
        match (verdict, fdpass::peer_credentials(one.socket.as_fd())) {
            (Ok(rank), Ok(who)) => {
                let process = process::peer_process(one.socket.as_fd()).map(Arc::new);
                self.broker.seat(rank, one.socket, who, process);
                self.broker.welcome(rank);
            }
            (Ok(_), Err(_)) => {}
            (Err(reason), _) => {
                let message = ToRank::Refused { reason }.encode();
                // A rank that does not take the answer is not waited for.
                let _ = fdpass::send(one.socket.as_fd(), &message, &[], Wait::Never);
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
        if !self.broker.is_here(rank) {
            return Err(format!("rank {rank} does not belong to this node"));
        }
        if !self.broker.is_vacant(rank) {
            return Err(format!("rank {rank} has come already"));
        }
        Ok(())
    }
}
