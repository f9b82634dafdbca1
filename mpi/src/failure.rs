// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of calls. How they reach the program's error handlers is in `raise.rs`.

use crate::c;
use std::borrow::Cow;
use std::sync::Arc;

/// An object whose error handler may get a failure.
pub(crate) trait Owner: std::fmt::Debug + Send + Sync {
    /// Hands a failure of the call `name` to its handler, and gives the code to return.
    fn raise(&self, name: &'static str, failure: &Failure) -> i32;
}

/// What went wrong, as a class of the standard and in words.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: Cow<'static, str>,
    /// The communicator concerned, if it is another than the call's. The program may have freed it.
    pub(crate) on: Option<Arc<dyn Owner>>,
}

/// The result of most functions here.
pub(crate) type Outcome<T> = Result<T, Box<Failure>>;

/// A failure.
#[cold]
pub(crate) fn fail(code: i32, text: impl Into<Cow<'static, str>>) -> Box<Failure> {
    Box::new(Failure {
        code,
        text: text.into(),
        on: None,
    })
}

impl Failure {
    /// The same, about another object than the call's.
    pub(crate) fn on<O: Owner + 'static>(mut self: Box<Self>, owner: &Arc<O>) -> Box<Self> {
        self.on = Some(Arc::<O>::clone(owner));
        self
    }
}

impl From<onecopy::Error> for Box<Failure> {
    #[cold]
    fn from(error: onecopy::Error) -> Self {
        use onecopy::Error as E;
        let class = match &error {
            E::PeerDied { .. } | E::PeerLeft { .. } | E::Protocol { .. } => c::ERR_PROC_ABORTED,
            E::Truncated { .. } => c::ERR_TRUNCATE,
            E::NoSuchRank { .. } => c::ERR_RANK,
            E::BadTag { .. } => c::ERR_TAG,
            E::Alloc(_) | E::Segment(_) => c::ERR_NO_MEM,
            E::Collective { .. }
            | E::Knob(_)
            | E::TuneFile { .. }
            | E::Wireup(_)
            | E::Aborted { .. }
            | E::Device(_)
            | E::Finalized
            | E::Forked
            // It may well be alive: what failed may be this process's own map.
            | E::Unreachable { .. } => c::ERR_OTHER,
            _ => c::ERR_INTERN,
        };
        fail(class, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_cannot_be_mapped_has_not_aborted() {
        let class = |error: onecopy::Error| Box::<Failure>::from(error).code;
        let unreachable = onecopy::Error::Unreachable {
            rank: 1,
            reason: "mmap: out of memory".into(),
        };
        assert_eq!(class(unreachable), c::ERR_OTHER);
        let protocol = onecopy::Error::Protocol {
            rank: 1,
            detail: "nonsense".into(),
        };
        assert_eq!(class(protocol), c::ERR_PROC_ABORTED);
    }
}
