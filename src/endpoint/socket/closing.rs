// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far both directions of a connection are closed: a machine without a socket. What is written and read at its
//! transitions: [`super::leaving`].
//!
//! ```text
//! sends     Frames ──► Farewell ──► GivingUp ──► Nothing
//! receives  Frames ──► Farewell ──► Ended { said_farewell }    a farewell in the buffer is read after the end, too
//! ```
//!
//! Farewell and GivingUp may be left out: Frames goes to each state behind it, and so does Farewell. Nothing and Ended
//! are final. The directions are not independent: once the peer's stream has ended,
//! `sends` is Nothing, or GivingUp until its deadline.

use super::feed::End;
use std::time::Instant;

/// What this rank still sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    Frames,
    /// It has said farewell: what waits still goes out. No record or credit follows; control frames of a lane still
    /// may.
    Farewell,
    /// It has given the peer up: what waits goes out, until the deadline at most.
    GivingUp {
        deadline: Instant,
    },
    Nothing,
}

/// What still comes from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiveState {
    Frames,
    /// The peer has said farewell: no record follows.
    Farewell,
    /// The stream has ended.
    Ended {
        how: End,
        said_farewell: bool,
    },
}

/// How far both directions of a connection are closed.
#[derive(Debug)]
pub(super) struct Closing {
    sends: SendState,
    receives: ReceiveState,
    /// The peer has given this rank up. It may say so before or after a farewell, and this rank may read it after the
    /// end.
    peer_gave_up: bool,
}

impl Closing {
    /// Nothing is closed.
    pub(super) fn new() -> Self {
        Self {
            sends: SendState::Frames,
            receives: ReceiveState::Frames,
            peer_gave_up: false,
        }
    }

    /// Whether this rank may begin a frame of a record or of credit, or offer a lane.
    #[inline]
    pub(super) fn permits_frames(&self) -> bool {
        matches!(self.sends, SendState::Frames)
    }

    /// Whether this rank has given the peer up or can no longer write; delivery is not awaited.
    #[inline]
    pub(super) fn has_stopped(&self) -> bool {
        matches!(self.sends, SendState::GivingUp { .. } | SendState::Nothing)
    }

    /// Whether nothing goes to the peer any more, not even what waits.
    #[inline]
    pub(super) fn sends_nothing(&self) -> bool {
        matches!(self.sends, SendState::Nothing)
    }

    /// Until when what waits may go out to a peer that this rank has given up.
    pub(super) fn give_up_deadline(&self) -> Option<Instant> {
        match self.sends {
            SendState::GivingUp { deadline } => Some(deadline),
            SendState::Frames | SendState::Farewell | SendState::Nothing => None,
        }
    }

    /// This rank leaves. `false`: it has closed its direction before, and has no farewell to send.
    pub(super) fn say_farewell(&mut self) -> bool {
        let permitted = self.permits_frames();
        if permitted {
            self.sends = SendState::Farewell;
        }
        permitted
    }

    /// This rank gives the peer up. What waits may go out until `deadline`, if anything still can.
    pub(super) fn give_up(&mut self, deadline: Instant) {
        if !self.has_stopped() {
            self.sends = SendState::GivingUp { deadline };
        }
    }

    /// All has gone out to a peer that this rank has given up, or the deadline has passed.
    pub(super) fn give_up_is_over(&mut self) {
        self.sends = SendState::Nothing;
    }

    /// The peer is gone or reads no more. What waits for a peer that this rank has given up keeps its deadline.
    pub(super) fn stop_sending(&mut self) {
        if self.give_up_deadline().is_none() {
            self.sends = SendState::Nothing;
        }
    }

    /// The peer has said farewell.
    pub(super) fn on_farewell(&mut self) {
        match &mut self.receives {
            ReceiveState::Ended { said_farewell, .. } => *said_farewell = true,
            ReceiveState::Frames | ReceiveState::Farewell => {
                self.receives = ReceiveState::Farewell;
            }
        }
    }

    /// The stream has ended. The first reason stays.
    pub(super) fn on_end(&mut self, how: End) {
        if !self.has_ended() {
            self.receives = ReceiveState::Ended {
                how,
                said_farewell: self.has_heard_farewell(),
            };
        }
        self.stop_sending();
    }

    /// The peer has given this rank up.
    pub(super) fn on_given_up(&mut self) {
        self.peer_gave_up = true;
    }

    /// Whether the peer has given this rank up.
    #[inline]
    pub(super) fn peer_gave_up(&self) -> bool {
        self.peer_gave_up
    }

    /// Whether the peer has said farewell.
    #[inline]
    pub(super) fn has_heard_farewell(&self) -> bool {
        match self.receives {
            ReceiveState::Frames => false,
            ReceiveState::Farewell => true,
            ReceiveState::Ended { said_farewell, .. } => said_farewell,
        }
    }

    /// How the stream has ended, if it has.
    #[inline]
    pub(super) fn end(&self) -> Option<End> {
        match self.receives {
            ReceiveState::Ended { how, .. } => Some(how),
            ReceiveState::Frames | ReceiveState::Farewell => None,
        }
    }

    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.end().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use proptest::prelude::*;
    use std::time::Duration;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        SayFarewell,
        GiveUp,
        GiveUpIsOver,
        StopSending,
        OnFarewell,
        OnEnd,
        OnGivenUp,
    }

    impl Step {
        fn apply(self, closing: &mut Closing, deadline: Instant) {
            match self {
                Self::SayFarewell => _ = closing.say_farewell(),
                Self::GiveUp => closing.give_up(deadline),
                Self::GiveUpIsOver => closing.give_up_is_over(),
                Self::StopSending => closing.stop_sending(),
                Self::OnFarewell => closing.on_farewell(),
                Self::OnEnd => closing.on_end(End::Closed),
                Self::OnGivenUp => closing.on_given_up(),
            }
        }
    }

    fn closed_by(closing: &Closing) -> [bool; 5] {
        [
            !closing.permits_frames(),
            closing.has_stopped(),
            closing.has_heard_farewell(),
            closing.has_ended(),
            closing.peer_gave_up(),
        ]
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::SayFarewell),
            Just(Step::GiveUp),
            Just(Step::GiveUpIsOver),
            Just(Step::StopSending),
            Just(Step::OnFarewell),
            Just(Step::OnEnd),
            Just(Step::OnGivenUp),
        ];
        proptest::collection::vec(step, 0..8)
    }

    proptest! {
        #[test]
        fn what_is_closed_stays_closed(steps in steps()) {
            let mut closing = Closing::new();
            let deadline = Instant::now();
            for step in steps {
                let closed = closed_by(&closing);
                step.apply(&mut closing, deadline);
                let now = closed_by(&closing);
                prop_assert!(closed.iter().zip(now).all(|(was, is)| !was || is), "{closing:?}");
                prop_assert!(!closing.has_ended() || closing.has_stopped(), "{closing:?}");
                prop_assert!(!(closing.permits_frames() && closing.has_stopped()), "{closing:?}");
            }
        }
    }

    #[test]
    fn a_farewell_is_said_once_and_what_waits_still_goes_out() {
        let mut closing = Closing::new();
        assert!(closing.say_farewell());
        assert!(!closing.say_farewell());
        assert!(!closing.permits_frames() && !closing.has_stopped());
        closing.stop_sending();
        assert!(closing.has_stopped());
        assert!(!closing.say_farewell(), "nothing goes out");
    }

    #[test]
    fn a_peer_that_is_given_up_keeps_its_deadline() {
        let deadline = Instant::now() + Duration::from_secs(1);
        for before in [Step::OnFarewell, Step::SayFarewell] {
            let mut closing = Closing::new();
            before.apply(&mut closing, deadline);
            closing.give_up(deadline);
            closing.give_up(deadline + Duration::from_secs(1));
            closing.stop_sending();
            closing.on_end(End::Closed);
            assert!(!closing.say_farewell(), "{before:?}");
            assert_eq!(closing.give_up_deadline(), Some(deadline), "{before:?}");
            closing.give_up_is_over();
            assert_eq!(closing.give_up_deadline(), None, "{before:?}");
            assert!(closing.has_stopped());
        }
    }

    #[test]
    fn a_peer_that_can_be_told_nothing_is_given_up_at_once() {
        let deadline = Instant::now() + Duration::from_secs(1);
        for before in [Step::StopSending, Step::OnEnd] {
            let mut closing = Closing::new();
            before.apply(&mut closing, deadline);
            closing.give_up(deadline);
            assert_eq!(closing.give_up_deadline(), None, "{before:?}");
            assert!(closing.has_stopped() && !closing.permits_frames());
        }
    }

    #[test]
    fn the_first_end_stays_and_a_farewell_is_read_behind_it() {
        let mut closing = Closing::new();
        let failed = End::Failed(Errno::ETIMEDOUT);
        closing.on_end(failed);
        closing.on_end(End::Closed);
        assert_eq!(closing.end(), Some(failed));
        assert!(!closing.has_heard_farewell());
        closing.on_farewell();
        assert!(closing.has_heard_farewell());
        assert_eq!(closing.end(), Some(failed));
    }

    #[test]
    fn an_end_behind_a_farewell_remembers_it() {
        let mut closing = Closing::new();
        closing.on_farewell();
        assert!(!closing.has_ended() && closing.permits_frames());
        closing.on_end(End::Closed);
        assert!(closing.has_heard_farewell());
        assert_eq!(closing.end(), Some(End::Closed));
    }

    #[test]
    fn a_peer_that_gives_this_rank_up_closes_neither_direction() {
        let mut closing = Closing::new();
        closing.on_given_up();
        assert!(closing.peer_gave_up() && closing.permits_frames());
        assert!(!closing.has_ended() && !closing.has_heard_farewell());
    }
}
