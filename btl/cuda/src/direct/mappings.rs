// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of peers that this process has open: a bounded list, the least recently used first.
//!
//! A mapping is kept by who offered it, the own device's context, its base, its number and its handle. Who copies from
//! one keeps it; when nobody does and the list has let it go, it is closed.
//!
//! Memory of a pool is open for one message alone, and is in no list. Before the message is over it is given back, in
//! the queue of its copy.

use super::handle::Handle;
use super::opening::{Key, Opened, close, give_back, open};
use super::process::Refusal;
use super::{PATIENCE, most, reason};
use super::{export, helper, process};
use crate::context::ContextId;
use crate::error::{Error, STAGED};
use crate::lane::Lane;
use crate::pipeline::lock;
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, Library};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// So many refusals by one peer's allocations, and no success, are enough: it is not asked again. Chosen by magnitude:
/// one may be about its allocation alone; each costs its message the time of a call.
const REFUSALS: u32 = 4;

/// A driver that has opened no more than so many is asked for one more after as many others. Chosen by magnitude: each
/// time may send one message through the host.
const AGAIN: usize = 64;

#[derive(Clone, Debug)]
enum State {
    Opening,
    Open(Opened),
    Refused(Arc<str>),
}

/// An allocation of a peer. When it is dropped it is closed.
#[derive(Debug)]
pub(super) struct Mapping {
    key: Key,
    since: Instant,
    state: Mutex<State>,
    /// By whom it is closed; none: nobody has opened it.
    driver: OnceLock<&'static Library>,
}

/// What a mapping is to a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Here is its first byte.
    At(u64),
    /// It is being opened.
    NotYet,
    /// It cannot be used, or not now.
    Not(Arc<str>),
}

impl Mapping {
    fn new(key: Key) -> Self {
        Self {
            key,
            since: Instant::now(),
            state: Mutex::new(State::Opening),
            driver: OnceLock::new(),
        }
    }

    pub(super) fn look(&self) -> Look {
        match &*lock(&self.state) {
            State::Open(opened) => match opened.address() {
                Some(address) => Look::At(address),
                None => Look::Not("its memory was given back".into()),
            },
            State::Refused(why) => Look::Not(Arc::clone(why)),
            State::Opening if !self.is_late() => Look::NotYet,
            State::Opening => {
                Look::Not("a mapping is opened, and that waits for the device".into())
            }
        }
    }

    /// Whether no message waits any more for it to be opened.
    fn is_late(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }

    fn is_open(&self) -> bool {
        matches!(*lock(&self.state), State::Open(_))
    }

    /// Whether memory of a pool is to be given back before the message is over.
    pub(super) fn is_lent(&self) -> bool {
        matches!(*lock(&self.state), State::Open(Opened::Pool { .. }))
    }

    /// Gives memory of a pool back, behind what the lane copies. Other mappings stay.
    pub(super) fn give_back(&self, lane: &Lane) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if let State::Open(opened) = &mut *state {
            give_back(opened, lane)?;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (state, driver) = (lock(&self.state).clone(), self.driver.get().copied());
        if let (State::Open(opened), Some(driver)) = (state, driver) {
            let key = self.key.clone();
            // What cannot be closed ends with the process.
            helper::leave(Box::new(move || _ = close(driver, &key, opened)));
        }
    }
}

/// What the list gives.
enum Given {
    Known(Arc<Mapping>),
    /// It is to be opened.
    New(Arc<Mapping>),
}

/// As many as the driver permits. Other processes may have left it less for a while.
#[derive(Debug, PartialEq, Eq)]
struct Permitted {
    count: usize,
    /// Mappings since then for which another one had to go.
    since: usize,
}

/// The list.
#[derive(Debug, Default)]
struct Mappings {
    /// The most recently used stands last.
    list: Vec<Arc<Mapping>>,
    /// Where the driver has refused more.
    permitted: Option<Permitted>,
    /// Refusals of each peer's allocations of a form since the last success, and the last one's reason.
    refusals: Vec<(Origin, u32, Arc<str>)>,
    /// Those of one message alone.
    passing: Vec<Weak<Mapping>>,
    /// Peers of which the kernel gives out no descriptor, how often one was wanted since, and why.
    closed: Vec<(u32, usize, Arc<str>)>,
}

/// Whose allocations, and of which form.
type Origin = (u32, std::mem::Discriminant<Handle>);

fn origin(key: &Key) -> Origin {
    (key.peer, std::mem::discriminant(&key.handle))
}

impl Mappings {
    const fn new() -> Self {
        Self {
            list: Vec::new(),
            permitted: None,
            refusals: Vec::new(),
            passing: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// `refusal`: why nothing can be opened now. An error: why there is no mapping.
    fn get(
        &mut self,
        key: Key,
        most: usize,
        refusal: impl FnOnce() -> Option<Arc<str>>,
    ) -> Result<Given, Arc<str>> {
        if let Some(index) = self.list.iter().position(|mapping| mapping.key == key) {
            let found = self.list.remove(index);
            self.list.push(Arc::clone(&found));
            return Ok(Given::Known(found));
        }
        self.list.retain(|mapping| !key.replaces(&mapping.key));
        if let Some(why) = self.given_up(origin(&key)) {
            return Err(Arc::clone(why));
        }
        if key.handle.fd().is_some() {
            self.is_closed(key.peer)?;
        }
        // Before another one goes for it.
        refusal().map_or(Ok(()), Err)?;
        // What gives an allocation of a pool back could take it from another message.
        let passing = self.passing_in(key.context);
        if !key.stays() && passing.iter().any(|other| key.may_be(&other.key)) {
            return Err("another message of that pool's allocation is being copied".into());
        }
        let rest = most.saturating_sub(passing.len());
        let rest = match key.stays() {
            true => self.most(rest),
            false => rest,
        };
        self.make_room(rest)?;
        let new = Arc::new(Mapping::new(key));
        match new.key.stays() {
            true => self.list.push(Arc::clone(&new)),
            false => self.passing.push(Arc::downgrade(&new)),
        }
        Ok(Given::New(new))
    }

    /// Those of one message alone. In a context that is gone nothing is given back any more.
    fn passing_in(&mut self, context: ContextId) -> Vec<Arc<Mapping>> {
        let is_gone = |other: ContextId| other.device == context.device && other != context;
        let live: Vec<_> = self.passing.iter().filter_map(Weak::upgrade).collect();
        let live: Vec<_> = live
            .into_iter()
            .filter(|it| !is_gone(it.key.context))
            .collect();
        self.passing = live.iter().map(Arc::downgrade).collect();
        live
    }

    /// Lets the least recently used of the list go, until it has room for one more of so many.
    fn make_room(&mut self, most: usize) -> Result<(), Arc<str>> {
        while self.list.len() >= most {
            // Those in use are kept by their users, too.
            let unused = self
                .list
                .iter()
                .position(|mapping| Arc::strong_count(mapping) == 1);
            match unused {
                Some(index) => drop(self.list.remove(index)),
                None => {
                    let why = "as many allocations are in use as ONECOPY_DEVICE_MAPPINGS permits";
                    return Err(why.into());
                }
            }
        }
        Ok(())
    }

    /// An error: why no descriptor of a peer can be had. It is asked for again after a while.
    fn is_closed(&mut self, peer: u32) -> Result<(), Arc<str>> {
        let Some(index) = self.closed.iter().position(|(known, ..)| *known == peer) else {
            return Ok(());
        };
        let (_, since, why) = &mut self.closed[index];
        *since += 1;
        if *since <= AGAIN {
            return Err(Arc::clone(why));
        }
        self.closed.remove(index);
        Ok(())
    }

    /// As many as there may be with one more, of which the user permits so many.
    fn most(&mut self, most: usize) -> usize {
        let Some(permitted) = &mut self.permitted else {
            return most;
        };
        if self.list.len() >= permitted.count {
            permitted.since += 1;
        }
        if permitted.since > AGAIN {
            permitted.count += 1;
            permitted.since = 0;
        }
        permitted.count.min(most)
    }

    /// It was not opened, and may be asked for again.
    fn drop_new(&mut self, key: &Key) {
        self.list.retain(|known| known.key != *key);
    }

    /// Why allocations of a form of a peer are not asked for any more.
    fn given_up(&self, of: Origin) -> Option<&Arc<str>> {
        let refused = self.refusals.iter().find(|(refused, ..)| *refused == of);
        refused
            .filter(|(_, times, _)| *times >= REFUSALS)
            .map(|(.., why)| why)
    }

    fn refused(&mut self, of: Origin, why: Arc<str>) {
        match self
            .refusals
            .iter_mut()
            .find(|(refused, ..)| *refused == of)
        {
            Some((_, times, last)) => (*times, *last) = (*times + 1, why),
            None => self.refusals.push((of, 1, why)),
        }
    }

    fn succeeded(&mut self, of: Origin) {
        self.refusals
            .retain(|(refused, times, _)| *refused != of || *times >= REFUSALS);
    }

    /// A mapping was not opened. What is in the list stays there, so that it is not asked for again.
    fn not_opened(&mut self, mapping: &Mapping, refusal: &Refusal) {
        let open = self.list.iter().filter(|mapping| mapping.is_open()).count();
        let error = refusal.error();
        if let Refusal::Process(error) = refusal {
            let peer = mapping.key.peer;
            self.closed.retain(|(known, ..)| *known != peer);
            self.closed.push((peer, 0, reason(error)));
            self.drop_new(&mapping.key);
        } else if mapping.is_late() || mapping.key.is_refused_alone(refusal) {
            // Its owner may have freed it since its message went another way.
            self.drop_new(&mapping.key);
        } else if error.code == CUDA_ERROR_OUT_OF_MEMORY && open > 0 {
            // The driver opens no more than there are. One of these goes for the next.
            self.permitted = Some(Permitted {
                count: open,
                since: 0,
            });
            self.drop_new(&mapping.key);
        } else {
            self.refused(origin(&mapping.key), reason(error));
        }
    }

    fn forget(&mut self, peer: u32) {
        self.list.retain(|mapping| mapping.key.peer != peer);
        self.refusals.retain(|((refused, _), ..)| *refused != peer);
        self.closed.retain(|(known, ..)| *known != peer);
    }
}

static MAPPINGS: Mutex<Mappings> = Mutex::new(Mappings::new());

/// The mapping of what a peer has offered to a device, which may have to be opened first. An error: why there is none.
pub(super) fn get(driver: &'static Library, key: Key) -> Result<Arc<Mapping>, Arc<str>> {
    let mut mappings = lock(&MAPPINGS);
    match mappings.get(key, most(), helper::refusal)? {
        Given::Known(known) => Ok(known),
        Given::New(new) => {
            let mapping = Arc::clone(&new);
            let asked = helper::ask(Box::new(move || {
                opened(driver, &mapping, begin(driver, &mapping));
            }));
            if let Err(why) = asked {
                mappings.drop_new(&new.key);
                return Err(why);
            }
            Ok(new)
        }
    }
}

/// The helper opens a mapping. Nobody may open memory of a pool whose message has gone another way: its owner may give
/// it back meanwhile.
fn begin(driver: &'static Library, mapping: &Mapping) -> Result<Opened, Refusal> {
    if mapping.is_late() && !mapping.key.stays() {
        return Err(Refusal::Late(Error::ours(
            "cuMemPoolImportPointer",
            format!("{} bytes of rank {}", mapping.key.size, mapping.key.peer),
            "the message did not wait",
            STAGED,
        )));
    }
    open(driver, &mapping.key)
}

/// The helper has opened a mapping, or not.
fn opened(driver: &'static Library, mapping: &Mapping, opened: Result<Opened, Refusal>) {
    let key = &mapping.key;
    // What is dropped under this lock leaves a task and takes no other lock of the list.
    let mut mappings = lock(&MAPPINGS);
    match opened {
        Ok(opened) => {
            let _ = mapping.driver.set(driver);
            *lock(&mapping.state) = State::Open(opened);
            mappings.succeeded(origin(key));
        }
        Err(refusal) => {
            *lock(&mapping.state) = State::Refused(reason(refusal.error()));
            mappings.not_opened(mapping, &refusal);
        }
    }
}

/// Closes what a peer has offered, which is gone.
pub fn forget(peer: u32) {
    lock(&MAPPINGS).forget(peer);
    process::forget(peer);
}

/// Closes everything that nobody copies from, and what is shown to others.
pub fn close_all() {
    *lock(&MAPPINGS) = Mappings::new();
    process::forget_all();
    export::end();
}

#[cfg(test)]
mod tests {
    use super::super::handle::HANDLE;
    use super::*;
    use cuda_sys::CUDA_ERROR_MAP_FAILED;

    fn key(peer: u32, base: u64, id: u64) -> Key {
        Key {
            peer,
            context: ContextId {
                device: 0,
                number: 1,
            },
            device: 0,
            base,
            size: 100,
            id,
            handle: Handle::Ipc([id as u8; HANDLE]),
        }
    }

    fn new(mappings: &mut Mappings, key: Key) -> Arc<Mapping> {
        match mappings.get(key, 4, || None) {
            Ok(Given::New(new)) => new,
            Ok(Given::Known(_)) => panic!("it is known"),
            Err(why) => panic!("{why}"),
        }
    }

    fn error(code: u32) -> Refusal {
        Refusal::Driver(Error {
            code,
            ..Error::ours("a call", "a mapping".into(), "a test", "none")
        })
    }

    /// The handles of a peer.
    fn of(peer: u32) -> Origin {
        origin(&key(peer, 0, 0))
    }

    fn is_known(mappings: &mut Mappings, key: Key) -> bool {
        matches!(mappings.get(key, 4, || None), Ok(Given::Known(_)))
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut mappings = Mappings::new();
        for base in 0..4 {
            new(&mut mappings, key(1, base, base));
        }
        assert!(is_known(&mut mappings, key(1, 0, 0)));
        new(&mut mappings, key(1, 9, 9));
        assert_eq!(mappings.list.len(), 4);
        for (base, known) in [(0, true), (2, true), (3, true), (9, true)] {
            assert_eq!(is_known(&mut mappings, key(1, base, base)), known, "{base}");
        }
        assert!(!is_known(&mut mappings, key(1, 1, 1)));
    }

    #[test]
    fn what_is_in_use_stays() {
        let mut mappings = Mappings::new();
        let used: Vec<_> = (0..4)
            .map(|base| new(&mut mappings, key(1, base, base)))
            .collect();
        assert!(mappings.get(key(1, 9, 9), 4, || None).is_err());
        drop(used);
        new(&mut mappings, key(1, 9, 9));
    }

    #[test]
    fn none_goes_for_one_that_cannot_be_opened_now() {
        let mut mappings = Mappings::new();
        for base in 0..4 {
            new(&mut mappings, key(1, base, base));
        }
        let refused = mappings.get(key(1, 9, 9), 4, || Some("it is late".into()));
        assert_eq!(refused.err().as_deref(), Some("it is late"));
        assert!((0..4).all(|base| is_known(&mut mappings, key(1, base, base))));
    }

    #[test]
    fn another_allocation_at_the_same_place_is_another_one() {
        let mut mappings = Mappings::new();
        let old = new(&mut mappings, key(1, 5, 1));
        let other_peer = new(&mut mappings, key(2, 5, 1));
        let young = new(&mut mappings, key(1, 5, 2));
        assert!(!Arc::ptr_eq(&old, &young));
        assert_eq!(Arc::strong_count(&old), 1, "the list has let it go");
        assert_eq!(Arc::strong_count(&other_peer), 2, "it has another owner");
        assert!(is_known(&mut mappings, key(1, 5, 2)));
        // The same number with another handle is none that this process has opened.
        let forged = Key {
            handle: Handle::Ipc([0xee; HANDLE]),
            ..key(1, 5, 2)
        };
        new(&mut mappings, forged);
    }

    #[test]
    fn what_was_open_in_a_context_that_is_gone_is_not_used_in_the_next_one() {
        let of = |device, number, base| Key {
            context: ContextId { device, number },
            ..key(1, base, base)
        };
        let mut mappings = Mappings::new();
        let old = [of(0, 1, 5), of(0, 1, 6)].map(|key| new(&mut mappings, key));
        let other_device = new(&mut mappings, of(1, 2, 5));
        let young = new(&mut mappings, of(0, 3, 5));
        assert!(!Arc::ptr_eq(&old[0], &young));
        assert!(old.iter().all(|old| Arc::strong_count(old) == 1));
        assert_eq!(Arc::strong_count(&other_device), 2);
        assert!(is_known(&mut mappings, of(0, 3, 5)));
    }

    #[test]
    fn a_thousand_of_one_place_are_one() {
        let mut mappings = Mappings::new();
        for id in 0..1000 {
            new(&mut mappings, key(1, 5, id));
            assert_eq!(mappings.list.len(), 1);
        }
    }

    #[test]
    fn a_peer_of_which_nothing_opens_is_given_up_and_forgotten_when_it_is_gone() {
        let mut mappings = Mappings::new();
        new(&mut mappings, key(1, 5, 1));
        for _ in 1..REFUSALS {
            mappings.refused(of(1), "no".into());
        }
        assert!(mappings.given_up(of(1)).is_none());
        mappings.succeeded(of(1));
        for _ in 0..REFUSALS {
            mappings.refused(of(1), "never".into());
        }
        assert_eq!(mappings.given_up(of(1)).map(|why| &**why), Some("never"));
        assert!(mappings.given_up(of(2)).is_none());
        mappings.forget(1);
        assert!(mappings.given_up(of(1)).is_none() && mappings.list.is_empty());
    }

    #[test]
    fn what_is_open_of_a_peer_that_is_given_up_is_used() {
        let mut mappings = Mappings::new();
        let open = new(&mut mappings, key(1, 5, 1));
        *lock(&open.state) = State::Open(Opened::Ipc(5));
        for _ in 0..REFUSALS {
            mappings.refused(of(1), "no".into());
        }
        assert!(is_known(&mut mappings, key(1, 5, 1)));
        let other = mappings.get(key(1, 6, 2), 4, || None);
        assert_eq!(other.err().as_deref(), Some("no"));
    }

    #[test]
    fn what_is_refused_is_asked_for_once_and_what_was_late_again() {
        let mut mappings = Mappings::new();
        let refused = new(&mut mappings, key(1, 1, 1));
        mappings.not_opened(&refused, &error(CUDA_ERROR_MAP_FAILED));
        assert!(is_known(&mut mappings, key(1, 1, 1)));
        assert_eq!(mappings.refusals.len(), 1);
        let mut late = Mapping::new(key(2, 2, 2));
        late.since -= 2 * PATIENCE;
        let late = Arc::new(late);
        mappings.list.push(Arc::clone(&late));
        mappings.not_opened(&late, &error(CUDA_ERROR_MAP_FAILED));
        assert!(!is_known(&mut mappings, key(2, 2, 2)));
        assert_eq!(mappings.refusals.len(), 1, "nothing is known of that peer");
        // The limit is none at all: that is a refusal.
        let none = new(&mut mappings, key(3, 3, 3));
        mappings.not_opened(&none, &error(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!((mappings.permitted, mappings.refusals.len()), (None, 2));
    }

    #[test]
    fn a_limit_of_the_driver_is_kept_to() {
        let mut mappings = Mappings::new();
        for base in 0..3 {
            let mapping = new(&mut mappings, key(1, base, base));
            *lock(&mapping.state) = State::Open(Opened::Ipc(base));
        }
        let refused = new(&mut mappings, key(1, 3, 3));
        mappings.not_opened(&refused, &error(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(mappings.list.len(), 3);
        let again = new(&mut mappings, key(1, 3, 3));
        assert!(!Arc::ptr_eq(&refused, &again), "it is asked for again");
        assert_eq!(mappings.list.len(), 3, "the first one went for it");
        *lock(&again.state) = State::Open(Opened::Ipc(3));
        drop(again);
        // The driver may permit more later, and is asked again.
        let opens = |mappings: &mut Mappings, base| {
            let mapping = new(mappings, key(1, base, base));
            *lock(&mapping.state) = State::Open(Opened::Ipc(base));
            mappings.list.len()
        };
        let most = (4..=2 * AGAIN as u64).map(|base| opens(&mut mappings, base));
        assert_eq!(most.max(), Some(4), "one more in so many");
        let refused = new(&mut mappings, key(1, 1000, 1000));
        mappings.not_opened(&refused, &error(CUDA_ERROR_OUT_OF_MEMORY));
        drop(refused);
        assert_eq!(opens(&mut mappings, 1001), 3, "it does not");
    }

    fn of_pool(peer: u32, id: u64) -> Key {
        let data = [id as u8; HANDLE];
        Key {
            handle: Handle::Pool { fd: 7, data },
            ..key(peer, 8 + id, id)
        }
    }

    #[test]
    fn memory_of_a_pool_is_open_once_and_for_one_message() {
        let mut mappings = Mappings::new();
        let first = new(&mut mappings, of_pool(1, 1));
        assert!(mappings.get(of_pool(1, 1), 4, || None).is_err(), "in use");
        let others = [of_pool(1, 2), of_pool(2, 1)].map(|key| new(&mut mappings, key));
        // Whatever a peer says of it: what the driver is asked for, or where it lies, is the same.
        for (base, data) in [(9, 5), (77, 1)] {
            let data = [data; HANDLE];
            let renamed = Key {
                handle: Handle::Pool { fd: 8, data },
                ..key(1, base, 77)
            };
            let renamed = mappings.get(renamed, 9, || None).err();
            assert!(renamed.is_some_and(|why| why.contains("another message")));
        }
        drop(first);
        let again = new(&mut mappings, of_pool(1, 1));
        let fourth = new(&mut mappings, of_pool(3, 1));
        assert!(
            mappings.get(of_pool(4, 1), 4, || None).is_err(),
            "the bound"
        );
        drop((others, again, fourth));
        assert!(mappings.list.is_empty());
        new(&mut mappings, of_pool(4, 1));
    }

    #[test]
    fn the_bound_is_for_what_stays_and_for_memory_of_pools_together() {
        let mut mappings = Mappings::new();
        for base in 0..4 {
            new(&mut mappings, key(1, base, base));
        }
        let passing = [1, 2, 3].map(|id| new(&mut mappings, of_pool(1, id)));
        assert_eq!(mappings.list.len(), 1, "one goes for each");
        let used = new(&mut mappings, key(1, 6, 6));
        assert_eq!(mappings.list.len(), 1);
        assert!(mappings.get(of_pool(1, 4), 4, || None).is_err(), "in use");
        assert!(mappings.get(key(1, 7, 7), 4, || None).is_err(), "in use");
        drop(passing);
        for base in 7..10 {
            new(&mut mappings, key(1, base, base));
        }
        assert_eq!(mappings.list.len(), 4);
        drop(used);
    }

    #[test]
    fn a_form_that_is_refused_spoils_no_other_form_of_its_peer() {
        let mut mappings = Mappings::new();
        for id in 0..u64::from(REFUSALS) {
            let refused = new(&mut mappings, of_pool(1, id));
            mappings.not_opened(&refused, &error(CUDA_ERROR_MAP_FAILED));
        }
        assert!(mappings.get(of_pool(1, 9), 4, || None).is_err());
        new(&mut mappings, key(1, 5, 1));
        new(&mut mappings, of_pool(2, 9));
    }

    #[test]
    fn a_process_that_gives_out_no_descriptor_is_seldom_asked_again() {
        let mut mappings = Mappings::new();
        let refused = || {
            let none = Error::ours("a call", "a descriptor".into(), "a test", "none");
            Refusal::Process(none)
        };
        let memory = |base| Key {
            handle: Handle::Memory { fd: 3 },
            ..key(1, base, base)
        };
        for _ in 0..3 {
            let first = new(&mut mappings, memory(1));
            mappings.not_opened(&first, &refused());
            drop(first);
            for _ in 0..AGAIN {
                assert!(mappings.get(memory(1), 4, || None).is_err());
            }
        }
        // Whatever needs none goes on.
        new(&mut mappings, key(1, 5, 1));
        let second = new(&mut mappings, memory(2));
        mappings.not_opened(&second, &refused());
        mappings.forget(1);
        new(&mut mappings, memory(1));
    }
}
