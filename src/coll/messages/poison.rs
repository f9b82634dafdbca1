// SPDX-License-Identifier: MIT OR Apache-2.0
//! The word by which a member without a channel says that it has given the communicator up.

use super::super::context::Messenger;
use super::super::state::CommState;
use super::{Message, MessagesInFlight};
use crate::engine::{Engine, SendMode};
use crate::error::Error;
use crate::matching::{MatchBits, Pattern, Unexpected};
use crate::request::{RequestId, RequestState, UserBuf};
use crate::state::UnexpectedMessage;
use onecopy_shm::sync::{Ordering, fence};

/// Words to the members that this rank has given the communicator up.
#[derive(Default)]
pub(crate) struct Poison {
    flight: MessagesInFlight,
    /// Those to members that may read this rank's memory, with their ranks.
    readers: Vec<(u32, RequestId)>,
}

impl Poison {
    /// Tells all members of a communicator without a channel.
    pub(crate) fn tell(engine: &mut Engine, state: &CommState, word: u64) -> Self {
        let mut this = Self::default();
        let loan = engine.core.loans.keep(word.to_le_bytes().to_vec());
        this.flight.loans.push(loan);
        let MatchBits { context, tag } = poison_bits(state);
        for (place, &rank) in state.members.iter().enumerate() {
            if place == state.me {
                continue;
            }
            let (buf, mode) = (UserBuf::One(loan), SendMode::Standard);
            // A member that gets no message finds out by itself.
            if let Ok(id) = engine.send(rank as usize, context, tag, buf, mode) {
                this.flight.requests.push(Message { id, expected: None });
                if engine.shares_node(rank) {
                    this.readers.push((rank, id));
                }
            }
        }
        this
    }

    /// Whether all who may read this rank's memory can see the word: it waits no more for room in their rings. One to
    /// which messages are held back is not waited for, as it may have to be answered by this rank first.
    pub(crate) fn is_seen(&self, engine: &Engine) -> bool {
        // SYNC(coll.poison): release before this rank's memory is used for something else
        fence(Ordering::SeqCst);
        self.readers.iter().all(|&(rank, id)| {
            let request = engine.core.requests.get(id);
            let is_queued = matches!(
                request.map(|request| request.state),
                Some(RequestState::Queued(_))
            );
            let peer = engine.peers[rank as usize].as_ref();
            !is_queued || peer.is_none_or(|peer| peer.outbound.holds_back())
        })
    }

    /// Whether nothing of it is under way any more.
    pub(crate) fn is_over(&mut self, engine: &mut Engine) -> bool {
        self.flight.has_ended(&mut Messenger::of(engine))
    }
}

/// By what the word is told that a member has given the communicator up.
pub(super) fn poison_bits(state: &CommState) -> MatchBits {
    MatchBits {
        context: state.context,
        tag: state.tags.poison(),
    }
}

/// Whether a member has reported that it has given the communicator up.
pub(crate) fn poisoned(engine: &Engine, state: &CommState) -> Option<Error> {
    poison_of(&engine.receives.unexpected, poison_bits(state), None)
}

/// As [`poisoned`], of one member.
pub(super) fn poison_of(
    unexpected: &Unexpected<UnexpectedMessage>,
    MatchBits { context, tag }: MatchBits,
    source: Option<u32>,
) -> Option<Error> {
    let pattern = Pattern {
        context,
        source,
        tag: Some(tag),
    };
    let entry = unexpected.find(&pattern)?;
    let rank = unexpected.envelope(entry).source;
    Some(Error::given_up(rank as usize))
}
