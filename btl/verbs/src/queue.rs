// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue of completions, and the table of what is under way.
//!
//! # Safety
//!
//! What an operation touches is in the table from before it is posted until its completion is polled. The table's names
//! have generations, so that a completion that comes twice, or after its pair, finds nothing. An account keeps its pair
//! or queue of receives alive. Apart from completions, nothing of a pair leaves the table before the pair is destroyed:
//! in [`Queue::retire`], or when the queue is dropped. There, memory that belongs to a pair with another owner is
//! leaked.
#![allow(unsafe_code, reason = "posts receives")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use onecopy_shm::sync::{AtomicU64, Ordering};

use crate::account::{Account, Keep, SendRoom, Watch};
use crate::domain::{Device, Domain, Receives};
use crate::error::{Error, Result};
use crate::memory::{Local, Slot};
use crate::provider::{Finished, Piece, Provider};
use crate::refused::Refused;
use crate::status::{SUCCESS, Status};
use crate::table::Table;

/// Completions that are taken at once. Chosen by magnitude: it spreads the cost of a call.
pub(crate) const BATCH: usize = 16;
/// The name of operations that hold nothing and are not reported, unless they fail.
pub(crate) const UNNAMED: u64 = u64::MAX;

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A send, write or read.
    Sent,
    /// A receive.
    Received,
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion<P: Provider> {
    /// What it was.
    pub done: Done,
    /// How it ended.
    pub outcome: std::result::Result<(), Status>,
    /// The own pair.
    pub pair: u32,
    /// The sender's pair, of a datagram.
    pub source: u32,
    /// Bytes that came. A datagram's begin at 40: see [`DATAGRAM_HEAD`].
    pub bytes: usize,
    /// The immediate data of the send.
    pub immediate: Option<u32>,
    /// The value that was posted with it; none for a failed send that held nothing.
    pub cookie: Option<u64>,
    /// Its slot.
    pub slot: Option<Slot<P>>,
}

/// What stands before a datagram in its receive: the network's header, or nothing of use.
pub const DATAGRAM_HEAD: usize = 40;

/// An operation under way.
#[derive(Debug)]
struct Flight<P: Provider> {
    account: u64,
    done: Done,
    local: Local<P>,
    cookie: u64,
    /// How many sends have ended when this one has.
    covers: u32,
}

/// A queue of completions.
///
/// What is under way in its pairs is in its table: it is asked wherever something is posted.
#[derive(Debug)]
pub struct Queue<P: Provider> {
    device: Device<P>,
    raw: P::Completions,
    channel: Option<P::Channel>,
    id: u64,
    length: u32,
    reserved: u32,
    flights: Table<Flight<P>>,
    accounts: Table<Account<P>>,
    late: u64,
    /// What a poll takes. It is kept, so that a poll in vain clears nothing.
    batch: [Finished; BATCH],
}

impl<P: Provider> Queue<P> {
    /// A queue of about so many completions; it grows with what is made of it. With `sleeps` there is a descriptor to
    /// sleep on.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn new(device: &Device<P>, length: u32, sleeps: bool) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let failed = |call| Error::of(call, format!("{length} completions on {}", device.name()));
        let context = device.context();
        let channel = if sleeps {
            Some(P::channel(context).map_err(failed("ibv_create_comp_channel"))?)
        } else {
            None
        };
        let length = length.clamp(1, device.limits().completions.max(1));
        let raw =
            P::completions(context, length, channel.as_ref()).map_err(failed("ibv_create_cq"))?;
        Ok(Self {
            device: device.clone(),
            raw,
            channel,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            length,
            reserved: 0,
            flights: Table::default(),
            accounts: Table::default(),
            late: 0,
            batch: [Finished::default(); BATCH],
        })
    }

    /// A queue of receives that pairs of this queue share.
    ///
    /// # Errors
    ///
    /// The device's errors, and a `length` beyond its limit.
    pub fn receives(
        &mut self,
        domain: &Domain<P>,
        length: u32,
        shared: Option<&P::Shared>,
    ) -> Result<Receives<P>> {
        let object = || format!("{length} shared receives on {}", self.device.name());
        let most = domain.device().limits().shared_receives;
        if length == 0 || length > most {
            return Err(Error::refused(
                "ibv_create_srq",
                object(),
                format!("the device allows 1 to {most}"),
                "ask for fewer",
            ));
        }
        let raw = P::receives(
            domain.raw(),
            length,
            shared.map(|shared| (shared, &self.raw)),
        );
        let raw = Arc::new(raw.map_err(Error::of("ibv_create_srq", object()))?);
        let keep = Keep::Receives(Arc::clone(&raw));
        let account = self.open_account(keep, 0, length)?;
        Ok(Receives {
            raw,
            queue: self.id,
            account,
            length,
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn device(&self) -> &Device<P> {
        &self.device
    }

    pub(crate) fn raw(&self) -> &P::Completions {
        &self.raw
    }

    /// Makes room for the completions of a pair or a queue of receives.
    pub(crate) fn open_account(&mut self, keep: Keep<P>, sends: u32, receives: u32) -> Result<u64> {
        let more = sends.saturating_add(receives);
        let wanted = self.reserved.saturating_add(more);
        let most = self.device.limits().completions;
        let object = || format!("{wanted} completions on {}", self.device.name());
        if wanted > most {
            let why = format!("the device allows {most} in a queue");
            return Err(Error::refused(
                "ibv_resize_cq",
                object(),
                why,
                "make queues of operations shorter, or another queue",
            ));
        }
        if wanted > self.length {
            let length = wanted.next_power_of_two().min(most);
            P::lengthen(&self.raw, length).map_err(Error::of("ibv_resize_cq", object()))?;
            self.length = length;
        }
        let account = Account {
            keep,
            sends: SendRoom::new(sends),
            receives_free: receives,
            reserved: more,
        };
        let name = self.accounts.insert(account);
        self.reserved = wanted;
        name.ok_or_else(|| {
            Error::refused("counting", "queue pairs", "there are too many", "use fewer")
        })
    }

    pub(crate) fn account(&mut self, name: u64) -> Option<&mut Account<P>> {
        self.accounts.get_mut(name)
    }

    /// Notes an operation, before it is posted; its name.
    pub(crate) fn begin(
        &mut self,
        account: u64,
        done: Done,
        local: Local<P>,
        cookie: u64,
        covers: u32,
    ) -> Option<u64> {
        self.flights.insert(Flight {
            account,
            done,
            local,
            cookie,
            covers,
        })
    }

    /// Takes back an operation that was not posted after all.
    pub(crate) fn take_back(&mut self, name: u64) -> Local<P> {
        self.flights
            .remove(name)
            .map_or(Local::Nothing, |flight| flight.local)
    }

    /// Posts a slot to receive into, for all pairs that share the queue.
    ///
    /// # Errors
    ///
    /// With the slot, when there is no room, or the device refuses.
    pub fn receive_shared(
        &mut self,
        receives: &Receives<P>,
        slot: Slot<P>,
        cookie: u64,
    ) -> std::result::Result<(), Refused<P>> {
        if receives.queue != self.id {
            return Err(Refused::of(
                Local::Nothing.or(slot),
                "ibv_post_srq_recv",
                "the receives are of another queue",
            ));
        }
        let raw = Arc::clone(&receives.raw);
        self.receive_by(
            receives.account,
            slot,
            cookie,
            "ibv_post_srq_recv",
            |id, pieces| {
                // SAFETY: the slot is in the table until its completion, or the end of the receives and their pairs.
                unsafe { P::receive_shared(&raw, id, pieces) }
            },
        )
    }

    pub(crate) fn receive_by(
        &mut self,
        account: u64,
        slot: Slot<P>,
        cookie: u64,
        call: &'static str,
        post: impl FnOnce(u64, &[Piece]) -> std::io::Result<()>,
    ) -> std::result::Result<(), Refused<P>> {
        let range = 0..slot.len();
        let piece = slot.piece(&range);
        let local = Local::Slot(slot, range);
        match self.accounts.get_mut(account) {
            Some(account) if account.receives_free > 0 => account.receives_free -= 1,
            Some(_) => return Err(Refused::full(local, call)),
            None => return Err(Refused::of(local, call, "the queue pair was retired")),
        }
        let Some(id) = self.begin(account, Done::Received, local, cookie, 0) else {
            return Err(Refused::of(Local::Nothing, call, "too many operations"));
        };
        post(id, &[piece]).map_err(|error| {
            if let Some(account) = self.accounts.get_mut(account) {
                account.receives_free += 1;
            }
            Refused::by_device(self.take_back(id), call, self.device.name(), error)
        })
    }

    /// Takes completions, without a system call; how many there were. Fewer than `BATCH`: the queue is empty now.
    ///
    /// # Errors
    ///
    /// When the queue itself has failed. Completions may be lost then: drivers report none that the same call took
    /// before. What they were of stays in the table until its pair, or its shared receives, are retired.
    pub fn poll(&mut self, mut each: impl FnMut(Completion<P>)) -> Result<usize> {
        let count = match P::poll(&self.raw, &mut self.batch) {
            Ok(count) => count.min(BATCH),
            Err(error) => return Err(self.poll_failed(error)),
        };
        for index in 0..count {
            let finished = self.batch[index];
            if let Some(completion) = self.complete(&finished) {
                each(completion);
            }
        }
        Ok(count)
    }

    #[cold]
    fn poll_failed(&self, error: std::io::Error) -> Error {
        Error::of("ibv_poll_cq", self.device.name())(error)
    }

    /// Takes an operation out of the table whose completion came. None: it has nothing to report.
    fn complete(&mut self, finished: &Finished) -> Option<Completion<P>> {
        let outcome = match finished.status {
            SUCCESS => Ok(()),
            code => Err(Status(code)),
        };
        let bytes = if outcome.is_ok() {
            finished.bytes as usize
        } else {
            0
        };
        let completion = Completion {
            done: Done::Sent,
            outcome,
            pair: finished.pair,
            source: finished.source,
            bytes,
            immediate: finished.immediate,
            cookie: None,
            slot: None,
        };
        if finished.id == UNNAMED {
            // A send that held nothing, and failed.
            return outcome.is_err().then_some(completion);
        }
        let Some(flight) = self.flights.remove(finished.id) else {
            self.late += 1;
            return None;
        };
        if let Some(account) = self.accounts.get_mut(flight.account) {
            match flight.done {
                Done::Sent => account.sends.end(flight.covers),
                Done::Received => account.receives_free += 1,
            }
        }
        if flight.cookie == UNNAMED {
            // One of many that hold nothing.
            return outcome.is_err().then_some(completion);
        }
        Some(Completion {
            done: flight.done,
            cookie: Some(flight.cookie),
            slot: flight.local.slot(),
            ..completion
        })
    }

    /// Has the descriptor become readable with the next completion. Poll once more before sleeping: one may have come
    /// before this call.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn arm(&self) -> Result<()> {
        P::arm(&self.raw).map_err(Error::of("ibv_req_notify_cq", self.device.name()))
    }

    /// What to sleep on.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(P::descriptor)
    }

    /// Makes the descriptor unreadable again; how often it had told.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn take_wakes(&self) -> Result<u32> {
        let Some(channel) = &self.channel else {
            return Ok(0);
        };
        P::take_wakes(channel).map_err(Error::of("ibv_get_cq_event", self.device.name()))
    }

    /// Whether a send of a pair found no room since this was last asked.
    pub(crate) fn take_wanted(&mut self, account: u64) -> bool {
        self.accounts
            .get_mut(account)
            .is_some_and(|account| account.sends.take_wanted())
    }

    /// Shows the cookies and slots of sends that are under way in a pair. The device reads these slots, or writes to
    /// them: who looks must know which.
    pub(crate) fn look_under_way(&self, account: u64, mut each: impl FnMut(u64, &Slot<P>)) {
        for flight in self.flights.values() {
            if let (true, Done::Sent, Local::Slot(slot, _)) =
                (flight.account == account, flight.done, &flight.local)
            {
                each(flight.cookie, slot);
            }
        }
    }

    /// Completions that it holds at most.
    pub(crate) fn capacity(&self) -> usize {
        self.length as usize
    }

    /// Operations that are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Completions that came for operations that were given up.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Gives up an account; what was under way in it ends here. The pair must have no other owner than `own`, or
    /// nothing is given back.
    pub(crate) fn close_account(&mut self, name: u64) -> Vec<Slot<P>> {
        let Some(account) = self.accounts.remove(name) else {
            return Vec::new();
        };
        self.reserved -= account.reserved;
        let watch = account.keep.watch();
        let flights = self.flights.remove_if(|flight| flight.account == name);
        if watch.exists() {
            // The pair has another owner, and the device may still write.
            flights.into_iter().for_each(std::mem::forget);
            return Vec::new();
        }
        flights
            .into_iter()
            .filter_map(|flight| flight.local.slot())
            .collect()
    }

    /// Ends the account of a pair that is gone: one that failed before messages went, so nothing is under way in it.
    pub(crate) fn forget(&mut self, account: u64) {
        drop(self.close_account(account));
    }

    /// Ends shared receives; their slots. Their pairs must have been retired before.
    pub fn retire_receives(&mut self, receives: Receives<P>) -> Vec<Slot<P>> {
        let account = receives.account;
        if receives.queue != self.id {
            return Vec::new();
        }
        drop(receives);
        self.close_account(account)
    }
}

impl<P: Provider> Drop for Queue<P> {
    fn drop(&mut self) {
        // First all pairs without another owner, then receives. What is destroyed afterwards touches nothing any more.
        let mut watches = Vec::new();
        let mut names = std::collections::HashMap::new();
        let flights = self.flights.remove_if(|_| true);
        for flight in &flights {
            if let std::collections::hash_map::Entry::Vacant(place) = names.entry(flight.account)
                && let Some(account) = self.accounts.remove(flight.account)
            {
                place.insert(watches.len());
                watches.push(account.keep);
            }
        }
        drop(self.accounts.remove_if(|_| true));
        let watches: Vec<Watch<P>> = watches.into_iter().map(Keep::watch).collect();
        for flight in flights {
            let watch = names
                .get(&flight.account)
                .and_then(|index| watches.get(*index));
            if watch.is_none_or(Watch::exists) {
                std::mem::forget(flight);
            }
        }
    }
}
