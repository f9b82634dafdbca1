// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which message goes to which receive: (context, source, tag), with wildcards, in order.
//!
//! Two sets of entries, posted receives and unexpected messages, each searched from the other side. Every search is a
//! look into one hash bin per *class* of pattern (source and tag known or not). So the time does not grow with the
//! length of the queues:
//!
//! * a posted receive is in the bins of its own class; an arriving message looks into all four and takes the oldest. A
//!   run of receives of one pattern lies beside the bins;
//! * an unexpected message is in the bins of all four classes; a receive looks into its own.

mod bins;
mod run;

use bins::Bins;
use run::Run;

/// Contexts from here on are the library's own.
pub(crate) const OWN_CONTEXTS: u32 = 1 << 31;

/// Which source a receive accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Any rank.
    Any,
    /// This rank.
    Rank(usize),
}

impl From<usize> for Source {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

/// Which tag a receive accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Any tag.
    Any,
    /// This tag.
    Is(i32),
}

impl From<i32> for Tag {
    fn from(tag: i32) -> Self {
        Self::Is(tag)
    }
}

/// What a message is addressed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Envelope {
    pub(crate) context: u32,
    pub(crate) source: u32,
    pub(crate) tag: i32,
}

/// What a sender gives a message to be matched by. With the sender's rank it is the message's [`Envelope`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatchBits {
    pub(crate) context: u32,
    pub(crate) tag: i32,
}

impl MatchBits {
    /// As one word, for a record.
    #[inline(always)]
    pub(crate) fn word(self) -> u64 {
        u64::from(self.tag as u32) | u64::from(self.context) << 32
    }

    /// Those of a word.
    #[inline(always)]
    pub(crate) fn of_word(word: u64) -> Self {
        Self {
            context: (word >> 32) as u32,
            tag: word as u32 as i32,
        }
    }
}

/// What a receive accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    pub(crate) context: u32,
    pub(crate) source: Option<u32>,
    pub(crate) tag: Option<i32>,
}

impl Pattern {
    #[inline]
    fn class(&self) -> usize {
        usize::from(self.source.is_none()) | usize::from(self.tag.is_none()) << 1
    }

    #[inline]
    pub(crate) fn accepts(&self, envelope: &Envelope) -> bool {
        self.context == envelope.context
            && self.source.is_none_or(|s| s == envelope.source)
            && self.tag.is_none_or(|t| t == envelope.tag)
    }
}

impl Envelope {
    /// The pattern of `class` that this envelope falls under.
    #[inline]
    fn pattern(&self, class: usize) -> Pattern {
        Pattern {
            context: self.context,
            source: (class & 1 == 0).then_some(self.source),
            tag: (class & 2 == 0).then_some(self.tag),
        }
    }
}

/// Names an entry of one of the two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryId(u32);

/// An entry with its age, by which entries are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Aged {
    age: u64,
    id: u32,
}

/// A receive in the bins.
#[derive(Debug, Clone, Copy)]
struct InBins {
    id: u32,
    class: usize,
}

/// Posted receives, each with a `T`.
#[derive(Debug)]
pub(crate) struct Posted<T> {
    /// Receives of one pattern, as long as there are any. Those of the same pattern in the bins are older.
    run: Run<T>,
    bins: Bins<T, 1>,
    /// Of those in the bins.
    per_class: [usize; 4],
}

impl<T> Default for Posted<T> {
    fn default() -> Self {
        Self {
            run: Run::default(),
            bins: Bins::default(),
            per_class: [0; 4],
        }
    }
}

impl<T: Copy> Posted<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.run.is_empty() && self.bins.is_empty()
    }

    /// How many lie side by side, those that were taken back among them.
    #[inline]
    pub(crate) fn in_run(&self) -> usize {
        self.run.length()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.run.len() + self.bins.len()
    }

    /// Posts a receive.
    #[inline(always)]
    pub(crate) fn post(&mut self, pattern: Pattern, value: T) -> EntryId {
        if self.run.takes(&pattern) {
            let age = self.bins.next_age();
            return EntryId(self.run.push(pattern, age, value));
        }
        self.post_in_bins(pattern, value)
    }

    fn post_in_bins(&mut self, pattern: Pattern, value: T) -> EntryId {
        self.per_class[pattern.class()] += 1;
        EntryId(self.bins.insert([pattern], value))
    }

    /// Takes the oldest receive that accepts `envelope`.
    #[inline(always)]
    pub(crate) fn take(&mut self, envelope: &Envelope) -> Option<T> {
        let in_run = self.run.first(envelope);
        if !self.bins.is_empty()
            && let Some(oldest) = self.oldest_in_bins(envelope, in_run)
        {
            self.per_class[oldest.class] -= 1;
            return Some(self.bins.remove(oldest.id));
        }
        in_run?;
        self.run.pop()
    }

    /// Whether a receive accepts `envelope`.
    #[inline]
    pub(crate) fn accepts(&self, envelope: &Envelope) -> bool {
        self.run.first(envelope).is_some()
            || !self.bins.is_empty() && self.oldest_in_bins(envelope, None).is_some()
    }

    /// The oldest receive in the bins that accepts `envelope`, if it is older than `than`.
    fn oldest_in_bins(&self, envelope: &Envelope, than: Option<u64>) -> Option<InBins> {
        let mut least = than.unwrap_or(u64::MAX);
        let mut oldest = None;
        for class in 0..4 {
            if self.per_class[class] > 0
                && let Some(Aged { id, age }) = self.bins.first(0, &envelope.pattern(class))
                && age < least
            {
                (oldest, least) = (Some(InBins { id, class }), age);
            }
        }
        oldest
    }

    /// Takes back a receive that was not matched.
    pub(crate) fn cancel(&mut self, entry: EntryId) -> T {
        if Run::<T>::has(entry.0) {
            return self.run.remove(entry.0).expect(bins::ONCE);
        }
        self.per_class[self.bins.pattern(entry.0, 0).class()] -= 1;
        self.bins.remove(entry.0)
    }

    /// What a receive that was not matched accepts.
    pub(crate) fn pattern(&self, entry: EntryId) -> Pattern {
        if Run::<T>::has(entry.0) {
            self.run.pattern()
        } else {
            self.bins.pattern(entry.0, 0)
        }
    }

    /// Puts another value in the place of that of a receive that was not matched.
    pub(crate) fn replace(&mut self, entry: EntryId, value: T) {
        if Run::<T>::has(entry.0) {
            if let Some(old) = self.run.value_mut(entry.0) {
                *old = value;
            }
        } else {
            *self.bins.value_mut(entry.0) = value;
        }
    }

    /// Takes all receives for which `which` holds, oldest first.
    pub(crate) fn take_where(&mut self, mut which: impl FnMut(&Pattern, T) -> bool) -> Vec<T> {
        let mut found = self.run.names_where(&mut which);
        found.extend(
            self.bins
                .ids_where(|patterns, value| which(&patterns[0], *value)),
        );
        found.sort_unstable();
        found
            .into_iter()
            .map(|one| self.cancel(EntryId(one.id)))
            .collect()
    }
}

/// Messages that came before their receive, each with a `T`.
#[derive(Debug)]
pub(crate) struct Unexpected<T> {
    bins: Bins<T, 4>,
    /// Messages that were kept or became whole so far; it wraps.
    pub(crate) kept: u32,
}

impl<T> Default for Unexpected<T> {
    fn default() -> Self {
        Self {
            bins: Bins::default(),
            kept: 0,
        }
    }
}

impl<T> Unexpected<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bins.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.bins.len()
    }

    /// There is one more that can be received whole or in part.
    pub(crate) fn count(&mut self) {
        self.kept = self.kept.wrapping_add(1);
    }

    /// Keeps a message.
    pub(crate) fn keep(&mut self, envelope: Envelope, value: T) -> EntryId {
        self.count();
        EntryId(
            self.bins
                .insert(std::array::from_fn(|class| envelope.pattern(class)), value),
        )
    }

    /// The oldest message that `pattern` accepts.
    #[inline]
    pub(crate) fn find(&self, pattern: &Pattern) -> Option<EntryId> {
        if self.is_empty() {
            return None;
        }
        self.bins
            .first(pattern.class(), pattern)
            .map(|first| EntryId(first.id))
    }

    pub(crate) fn envelope(&self, entry: EntryId) -> Envelope {
        let exact = self.bins.pattern(entry.0, 0);
        Envelope {
            context: exact.context,
            source: exact.source.unwrap_or(0),
            tag: exact.tag.unwrap_or(0),
        }
    }

    pub(crate) fn get(&self, entry: EntryId) -> &T {
        self.bins.value(entry.0)
    }

    pub(crate) fn get_mut(&mut self, entry: EntryId) -> &mut T {
        self.bins.value_mut(entry.0)
    }

    /// Takes a message out.
    pub(crate) fn take(&mut self, entry: EntryId) -> T {
        self.bins.remove(entry.0)
    }

    /// Messages for whose envelope `which` holds, oldest first.
    pub(crate) fn ids_where(&self, mut which: impl FnMut(&Envelope) -> bool) -> Vec<EntryId> {
        let found = self.bins.ids_where(|patterns, _| {
            let exact = &patterns[0];
            which(&Envelope {
                context: exact.context,
                source: exact.source.unwrap_or(0),
                tag: exact.tag.unwrap_or(0),
            })
        });
        found.into_iter().map(|one| EntryId(one.id)).collect()
    }

    /// Takes all messages from `source` for which `which` holds.
    pub(crate) fn take_where(&mut self, mut which: impl FnMut(u32, &T) -> bool) -> Vec<T> {
        let ids = self
            .bins
            .ids_where(|patterns, value| which(patterns[0].source.unwrap_or(0), value));
        ids.into_iter()
            .map(|one| self.bins.remove(one.id))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The oracle: plain vectors, searched from the front.
    #[derive(Default)]
    struct Plain {
        posted: Vec<(Pattern, usize)>,
        unexpected: Vec<(Envelope, usize)>,
    }

    fn envelope() -> impl Strategy<Value = Envelope> {
        (0u32..2, 0u32..3, 0i32..3).prop_map(|(context, source, tag)| Envelope {
            context,
            source,
            tag,
        })
    }

    fn pattern() -> impl Strategy<Value = Pattern> {
        (
            0u32..2,
            prop::option::of(0u32..3),
            prop::option::of(0i32..3),
        )
            .prop_map(|(context, source, tag)| Pattern {
                context,
                source,
                tag,
            })
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arrive(Envelope),
        Receive(Pattern),
        Cancel(usize),
        /// Receives of one pattern, one after the other.
        Window(Pattern, usize),
        TakeFrom(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![4 => envelope().prop_map(Step::Arrive), 4 => pattern().prop_map(Step::Receive), 1 => (0usize..20).prop_map(Step::Cancel),
            1 => (pattern(), 1usize..6).prop_map(|(pattern, count)| Step::Window(pattern, count)), 1 => (0u32..3).prop_map(Step::TakeFrom)]
    }

    proptest! {
        #[test]
        fn matches_as_a_plain_queue_does(steps in prop::collection::vec(step(), 0..600)) {
            let (mut posted, mut unexpected, mut plain) = (Posted::default(), Unexpected::default(), Plain::default());
            let mut ids = Vec::new();
            let steps = steps.into_iter().flat_map(|step| match step {
                Step::Window(pattern, count) => vec![Step::Receive(pattern); count],
                other => vec![other],
            });
            for (number, step) in steps.enumerate() {
                match step {
                    Step::Arrive(envelope) => {
                        let expected = plain.posted.iter().position(|(p, _)| p.accepts(&envelope)).map(|index| plain.posted.remove(index).1);
                        prop_assert_eq!(posted.accepts(&envelope), expected.is_some());
                        let found = posted.take(&envelope);
                        prop_assert_eq!(found, expected);
                        ids.retain(|&(_, n)| Some(n) != found);
                        if found.is_none() {
                            plain.unexpected.push((envelope, number));
                            unexpected.keep(envelope, number);
                        }
                    }
                    Step::Receive(pattern) => {
                        let expected = plain.unexpected.iter().position(|(e, _)| pattern.accepts(e)).map(|index| plain.unexpected.remove(index).1);
                        let found = unexpected.find(&pattern).map(|entry| unexpected.take(entry));
                        prop_assert_eq!(found, expected);
                        if found.is_none() {
                            plain.posted.push((pattern, number));
                            let id = posted.post(pattern, usize::MAX);
                            prop_assert_eq!(posted.pattern(id), pattern);
                            posted.replace(id, number);
                            ids.push((id, number));
                        }
                    }
                    Step::Cancel(which) if which < ids.len() => {
                        let (id, number) = ids.remove(which);
                        prop_assert_eq!(posted.cancel(id), number);
                        plain.posted.retain(|&(_, n)| n != number);
                    }
                    Step::Cancel(_) | Step::Window(..) => {}
                    Step::TakeFrom(source) => {
                        let found = posted.take_where(|pattern, _| pattern.source == Some(source));
                        let expected: Vec<usize> = plain.posted.iter().filter(|(p, _)| p.source == Some(source)).map(|&(_, n)| n).collect();
                        plain.posted.retain(|(p, _)| p.source != Some(source));
                        ids.retain(|(_, n)| !found.contains(n));
                        prop_assert_eq!(found, expected);
                    }
                }
                prop_assert_eq!(posted.len(), plain.posted.len());
                prop_assert_eq!(unexpected.len(), plain.unexpected.len());
            }
        }
    }
}
