// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of peers that this process has open: a bounded list, the least recently used first.
//!
//! A mapping is kept by who offered it, the own device's context, its base, its number and its handle. Who copies from
//! one keeps it; when nobody does and the list has let it go, it is closed.

use super::helper;
use super::opening::{Key, close, open};
use super::{PATIENCE, most, reason};
use crate::error::Error;
use crate::pipeline::lock;
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, Library};
use std::sync::{Arc, Mutex, OnceLock};
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
    Open(u64),
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
            State::Open(address) => Look::At(*address),
            State::Refused(why) => Look::Not(Arc::clone(why)),
            State::Opening if !self.is_late() => Look::NotYet,
            State::Opening => Look::Not("cuIpcOpenMemHandle waits for the device".into()),
        }
    }

    /// Whether no message waits any more for it to be opened.
    fn is_late(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }

    fn is_open(&self) -> bool {
        matches!(*lock(&self.state), State::Open(_))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (state, driver) = (lock(&self.state).clone(), self.driver.get().copied());
        if let (State::Open(address), Some(driver)) = (state, driver) {
            let context = self.key.context;
            // What cannot be closed ends with the process.
            helper::leave(Box::new(move || _ = close(driver, context, address)));
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
    /// Refusals of each peer since its last success, and the last one's reason.
    refusals: Vec<(u32, u32, Arc<str>)>,
}

impl Mappings {
    const fn new() -> Self {
        Self {
            list: Vec::new(),
            permitted: None,
            refusals: Vec::new(),
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
        if let Some(why) = self.given_up(key.peer) {
            return Err(Arc::clone(why));
        }
        // Before another one goes for it.
        refusal().map_or(Ok(()), Err)?;
        let most = self.most(most);
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
        let new = Arc::new(Mapping::new(key));
        self.list.push(Arc::clone(&new));
        Ok(Given::New(new))
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

    /// Why a peer is not asked any more.
    fn given_up(&self, peer: u32) -> Option<&Arc<str>> {
        let refused = self.refusals.iter().find(|(refused, ..)| *refused == peer);
        refused
            .filter(|(_, times, _)| *times >= REFUSALS)
            .map(|(.., why)| why)
    }

    fn refused(&mut self, peer: u32, why: Arc<str>) {
        match self
            .refusals
            .iter_mut()
            .find(|(refused, ..)| *refused == peer)
        {
            Some((_, times, last)) => (*times, *last) = (*times + 1, why),
            None => self.refusals.push((peer, 1, why)),
        }
    }

    fn succeeded(&mut self, peer: u32) {
        self.refusals
            .retain(|(refused, times, _)| *refused != peer || *times >= REFUSALS);
    }

    /// A mapping was not opened. What is in the list stays there, so that it is not asked for again.
    fn not_opened(&mut self, mapping: &Mapping, error: &Error) {
        let open = self.list.iter().filter(|mapping| mapping.is_open()).count();
        if mapping.is_late() {
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
            self.refused(mapping.key.peer, reason(error));
        }
    }

    fn forget(&mut self, peer: u32) {
        self.list.retain(|mapping| mapping.key.peer != peer);
        self.refusals.retain(|(refused, ..)| *refused != peer);
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
                opened(driver, &mapping, open(driver, &mapping.key));
            }));
            if let Err(why) = asked {
                mappings.drop_new(&new.key);
                return Err(why);
            }
            Ok(new)
        }
    }
}

/// The helper has opened a mapping, or not.
fn opened(driver: &'static Library, mapping: &Mapping, opened: Result<u64, Error>) {
    let key = &mapping.key;
    // What is dropped under this lock leaves a task and takes no other lock of the list.
    let mut mappings = lock(&MAPPINGS);
    match opened {
        Ok(address) => {
            let _ = mapping.driver.set(driver);
            *lock(&mapping.state) = State::Open(address);
            mappings.succeeded(key.peer);
        }
        Err(error) => {
            *lock(&mapping.state) = State::Refused(reason(&error));
            mappings.not_opened(mapping, &error);
        }
    }
}

/// Closes what a peer has offered, which is gone.
pub fn forget(peer: u32) {
    lock(&MAPPINGS).forget(peer);
}

/// Closes everything that nobody copies from.
pub fn close_all() {
    *lock(&MAPPINGS) = Mappings::new();
}

#[cfg(test)]
mod tests {
    use super::super::offer::HANDLE;
    use super::*;
    use crate::context::ContextId;
    use cuda_sys::CUDA_ERROR_MAP_FAILED;

    fn key(peer: u32, base: u64, id: u64) -> Key {
        Key {
            peer,
            context: ContextId {
                device: 0,
                number: 1,
            },
            base,
            size: 100,
            id,
            handle: [id as u8; HANDLE],
        }
    }

    fn new(mappings: &mut Mappings, key: Key) -> Arc<Mapping> {
        match mappings.get(key, 4, || None) {
            Ok(Given::New(new)) => new,
            Ok(Given::Known(_)) => panic!("it is known"),
            Err(why) => panic!("{why}"),
        }
    }

    fn error(code: u32) -> Error {
        Error {
            code,
            ..Error::ours("a call", "a mapping".into(), "a test", "none")
        }
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
            handle: [0xee; HANDLE],
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
            mappings.refused(1, "no".into());
        }
        assert!(mappings.given_up(1).is_none());
        mappings.succeeded(1);
        for _ in 0..REFUSALS {
            mappings.refused(1, "never".into());
        }
        assert_eq!(mappings.given_up(1).map(|why| &**why), Some("never"));
        assert!(mappings.given_up(2).is_none());
        mappings.forget(1);
        assert!(mappings.given_up(1).is_none() && mappings.list.is_empty());
    }

    #[test]
    fn what_is_open_of_a_peer_that_is_given_up_is_used() {
        let mut mappings = Mappings::new();
        let open = new(&mut mappings, key(1, 5, 1));
        *lock(&open.state) = State::Open(5);
        for _ in 0..REFUSALS {
            mappings.refused(1, "no".into());
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
            *lock(&mapping.state) = State::Open(base);
        }
        let refused = new(&mut mappings, key(1, 3, 3));
        mappings.not_opened(&refused, &error(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(mappings.list.len(), 3);
        let again = new(&mut mappings, key(1, 3, 3));
        assert!(!Arc::ptr_eq(&refused, &again), "it is asked for again");
        assert_eq!(mappings.list.len(), 3, "the first one went for it");
        *lock(&again.state) = State::Open(3);
        drop(again);
        // The driver may permit more later, and is asked again.
        let opens = |mappings: &mut Mappings, base| {
            let mapping = new(mappings, key(1, base, base));
            *lock(&mapping.state) = State::Open(base);
            mappings.list.len()
        };
        let most = (4..=2 * AGAIN as u64).map(|base| opens(&mut mappings, base));
        assert_eq!(most.max(), Some(4), "one more in so many");
        let refused = new(&mut mappings, key(1, 1000, 1000));
        mappings.not_opened(&refused, &error(CUDA_ERROR_OUT_OF_MEMORY));
        drop(refused);
        assert_eq!(opens(&mut mappings, 1001), 3, "it does not");
    }
}
