// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that are threads of one process: for tests, documentation and in-process measurements.
//!
//! The introducer is a table under a lock. A rank that is dropped without having left (its thread panicked, say) counts
//! as dead, so that no other rank waits for it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use onecopy_btl::lanes;

use super::message::MAX_RANKS;
use super::{
    Card, Death, Emergency, Event, Introduction, Missing, NetIdentity, Wireup, WireupError,
    job_number,
};
use crate::proof::fresh;

/// What all ranks share.
#[derive(Debug)]
struct World {
    members: Mutex<Vec<Member>>,
    joined: Condvar,
    timeout: Duration,
}

/// One rank's place.
#[derive(Debug)]
struct Member {
    card: Option<Card>,
    segment: Option<OwnedFd>,
    grant: Option<OwnedFd>,
    over: bool,
    events: VecDeque<Event>,
    /// Readable while `events` is not empty.
    event_fd: EventFd,
}

/// One rank of a job whose ranks are threads.
#[derive(Debug)]
pub struct Local {
    world: Arc<World>,
    event_fd: OwnedFd,
    rank: usize,
    size: usize,
    /// The node of each rank.
    nodes: Arc<[u32]>,
    net: Option<NetIdentity>,
    lanes: Option<lanes::Open>,
}

/// A job of `ranks` threads on `nodes` nodes, dealt out in turn. Those of one node share memory; others reach each
/// other over the loopback of this one.
pub fn world_of_nodes(ranks: usize, nodes: u32) -> Result<Vec<Local>, WireupError> {
    world_on((0..ranks as u32).map(|rank| rank % nodes).collect())
}

/// As [`world_of_nodes`], of as many ranks as there are entries: the node of each.
pub fn world_on(nodes: Arc<[u32]>) -> Result<Vec<Local>, WireupError> {
    let secret = fresh().map_err(|source| WireupError::System {
        call: "local",
        what: "reading /dev/urandom",
        source,
    })?;
    let several = nodes.windows(2).any(|pair| pair[0] != pair[1]);
    let mut world = world(nodes.len())?;
    for local in &mut world {
        local.nodes = Arc::clone(&nodes);
        local.net = several.then_some(NetIdentity {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            secret,
        });
    }
    Ok(world)
}

/// A job of `ranks` threads; give each thread one.
pub fn world(ranks: usize) -> Result<Vec<Local>, WireupError> {
    world_with_timeout(ranks, Duration::from_secs(30))
}

/// A job of `ranks` threads in which joining waits no longer than `timeout`.
pub fn world_with_timeout(ranks: usize, timeout: Duration) -> Result<Vec<Local>, WireupError> {
    if ranks > MAX_RANKS as usize {
        return Err(WireupError::TooManyRanks {
            call: "local",
            ranks,
        });
    }
    let event_fd = || {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        EventFd::from_value_and_flags(0, flags).map_err(|errno| WireupError::System {
            call: "local",
            what: "eventfd",
            source: errno.into(),
        })
    };
    let mut members = Vec::with_capacity(ranks);
    let mut event_fds = Vec::with_capacity(ranks);
    for _ in 0..ranks {
        let event_fd = event_fd()?;
        event_fds.push(copy(event_fd.as_fd(), "local")?);
        members.push(Member {
            card: None,
            segment: None,
            grant: None,
            over: false,
            events: VecDeque::new(),
            event_fd,
        });
    }
    let world = Arc::new(World {
        members: Mutex::new(members),
        joined: Condvar::new(),
        timeout,
    });
    Ok(event_fds
        .into_iter()
        .enumerate()
        .map(|(rank, event_fd)| Local {
            world: Arc::clone(&world),
            event_fd,
            rank,
            size: ranks,
            nodes: vec![0; ranks].into(),
            net: None,
            lanes: None,
        })
        .collect())
}

fn copy(fd: BorrowedFd<'_>, call: &'static str) -> Result<OwnedFd, WireupError> {
    fd.try_clone_to_owned()
        .map_err(|source| WireupError::System {
            call,
            what: "dup",
            source,
        })
}

impl World {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        // The table is consistent between any two statements: a panic of another rank does not spoil it.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies all ranks but `from`, and marks `from` as gone if `over`.
    fn announce(&self, from: usize, event: Event, over: bool) {
        let mut members = self.members();
        if over {
            if members[from].over {
                return;
            }
            members[from].over = true;
        }
        for (rank, member) in members.iter_mut().enumerate() {
            if rank != from && !member.over {
                member.events.push_back(event);
                // An eventfd refuses a write only when its counter is full: then it is readable already.
                let _ = member.event_fd.write(1);
            }
        }
        drop(members);
        self.joined.notify_all();
    }
}

impl Local {
    /// Opens the device of its lanes so: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_lanes(self, lanes: lanes::Open) -> Self {
        let mut with = self;
        with.lanes = Some(lanes);
        with
    }

    /// Dies as a process would: the others see [`Event::Died`].
    pub fn die(self, death: Death) {
        let rank = self.rank;
        self.world.announce(rank, Event::Died { rank, death }, true);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let rank = self.rank;
        let death = Death::Unknown;
        self.world.announce(rank, Event::Died { rank, death }, true);
    }
}

impl Wireup for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn job(&self) -> u64 {
        job_number(Arc::as_ptr(&self.world).addr())
    }

    fn grant(&mut self, grant: Option<BorrowedFd<'_>>) -> Result<(), WireupError> {
        let grant = grant.map(|fd| copy(fd, "grant")).transpose()?;
        self.world.members()[self.rank].grant = grant;
        Ok(())
    }

    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError> {
        let segment = copy(segment, "join")?;
        let mut members = self.world.members();
        if members[self.rank].card.is_some() {
            return Err(WireupError::Order {
                call: "join",
                reason: "this rank has joined already",
            });
        }
        members[self.rank].card = Some(card);
        members[self.rank].segment = Some(segment);
        self.world.joined.notify_all();
        let start = Instant::now();
        loop {
            let missing: Vec<Missing> = (0..self.size)
                .filter(|&rank| members[rank].card.is_none())
                .map(|rank| Missing {
                    rank,
                    running: !members[rank].over,
                })
                .collect();
            if missing.is_empty() {
                return Ok(members
                    .iter()
                    .filter_map(|member| member.card.clone())
                    .collect());
            }
            if missing.iter().any(|one| !one.running) {
                return Err(WireupError::Absent { missing });
            }
            let waited = start.elapsed();
            let Some(left) = self.world.timeout.checked_sub(waited) else {
                return Err(WireupError::Timeout { missing, waited });
            };
            members = self
                .world
                .joined
                .wait_timeout(members, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError> {
        const CALL: &str = "introduce";
        let members = self.world.members();
        let member = members.get(peer).ok_or(WireupError::NoSuchRank {
            call: CALL,
            rank: peer,
            size: self.size,
        })?;
        let segment = member.segment.as_ref().ok_or(WireupError::Order {
            call: CALL,
            reason: "the peer has not joined",
        })?;
        Ok(Introduction {
            memory: copy(segment.as_fd(), CALL)?,
            grant: member
                .grant
                .as_ref()
                .map(|fd| copy(fd.as_fd(), CALL))
                .transpose()?,
            pidfd: None,
            pid: Some(std::process::id().cast_signed()),
            uid: nix::unistd::getuid().as_raw(),
        })
    }

    fn node(&self, rank: usize) -> u32 {
        self.nodes.get(rank).copied().unwrap_or_default()
    }

    fn net(&self) -> Option<NetIdentity> {
        self.net.clone()
    }

    fn lanes(&self) -> Option<lanes::Open> {
        self.lanes.clone()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event_fd.as_fd())
    }

    fn poll(&mut self) -> Result<Option<Event>, WireupError> {
        let mut members = self.world.members();
        let member = &mut members[self.rank];
        let event = member.events.pop_front();
        if member.events.is_empty() {
            // Silences the descriptor; it refuses if it was silent.
            let _ = member.event_fd.read();
        }
        Ok(event)
    }

    fn leave(&mut self) -> Result<(), WireupError> {
        let rank = self.rank;
        self.world.announce(rank, Event::Left { rank }, true);
        Ok(())
    }

    fn emergency(&self) -> Arc<dyn Emergency> {
        Arc::new(LocalEmergency {
            world: Arc::clone(&self.world),
            rank: self.rank,
        })
    }
}

/// Tells all other ranks of an abort.
struct LocalEmergency {
    world: Arc<World>,
    rank: usize,
}

impl Emergency for LocalEmergency {
    fn abort(&self, code: i32) -> Result<(), WireupError> {
        self.world.announce(self.rank, Event::Abort { code }, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn segment() -> OwnedFd {
        memfd_create("segment", MFdFlags::MFD_CLOEXEC).expect("memfd")
    }

    fn readable(fd: BorrowedFd<'_>) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("poll") == 1
    }

    #[test]
    fn threads_join_and_are_introduced() {
        let ranks = world(3).expect("world");
        std::thread::scope(|scope| {
            for mut rank in ranks {
                scope.spawn(move || {
                    let mut card = Card::of_this_process();
                    card.uid = 100 + rank.rank() as u32;
                    let cards = rank.join(card, segment().as_fd()).expect("join");
                    let uids: Vec<u32> = cards.iter().map(|card| card.uid).collect();
                    assert_eq!(uids, [100, 101, 102]);
                    let peer = (rank.rank() + 1) % 3;
                    let got = rank.introduce(peer).expect("introduce");
                    assert!(nix::sys::stat::fstat(&got.memory).is_ok());
                    assert!(rank.introduce(3).is_err());
                    rank.leave().expect("leave");
                });
            }
        });
    }

    #[test]
    fn each_event_wakes_once() {
        let mut ranks = world(3).expect("world");
        let mut last = ranks.pop().expect("rank 2");
        let mut middle = ranks.pop().expect("rank 1");
        let first = ranks.pop().expect("rank 0");
        assert_eq!(last.poll().expect("poll"), None);
        middle.leave().expect("leave");
        first.die(Death::Signal(9));
        drop(middle);
        assert!(readable(last.event_fd().expect("fd")));
        assert_eq!(last.poll().expect("poll"), Some(Event::Left { rank: 1 }));
        assert!(readable(last.event_fd().expect("fd")));
        let death = Death::Signal(9);
        assert_eq!(
            last.poll().expect("poll"),
            Some(Event::Died { rank: 0, death })
        );
        assert!(!readable(last.event_fd().expect("fd")));
        assert_eq!(last.poll().expect("poll"), None);
    }

    #[test]
    fn a_job_with_too_many_ranks_names_the_limit() {
        let error = world(MAX_RANKS as usize + 1).expect_err("too many");
        assert_eq!(
            error.to_string(),
            "local: 24577 ranks are beyond the limit of 24576 ranks in a job"
        );
    }

    #[test]
    fn a_rank_that_never_joins_is_named() {
        let mut ranks = world_with_timeout(3, Duration::from_millis(20)).expect("world");
        let card = Card::of_this_process();
        let error = ranks[0]
            .join(card.clone(), segment().as_fd())
            .expect_err("alone");
        let WireupError::Timeout { missing, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(missing.len(), 2);
        assert!(
            error.to_string().contains("1, 2 (still running)"),
            "{error}"
        );
        drop(ranks.pop());
        let error = ranks[1]
            .join(card, segment().as_fd())
            .expect_err("dead peer");
        assert!(error.to_string().contains("2 (already ended)"), "{error}");
    }
}
