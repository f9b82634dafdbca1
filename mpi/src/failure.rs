// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of calls, and how they reach the program's error handlers.

use crate::comm::CommObject;
use crate::errors::{self, Handler};
use crate::ffi::{Comm, File, Session, Win};
use crate::{c, comm, job};
use std::borrow::Cow;
use std::sync::Arc;

/// What went wrong, as a class of the standard and in words.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: Cow<'static, str>,
    /// The communicator concerned, if it is another than the call's. The program may have freed it.
    pub(crate) on: Option<Arc<CommObject>>,
}

/// The result of most functions here.
pub(crate) type Outcome<T> = Result<T, Box<Failure>>;

/// The object whose handler an error goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Nothing,
    Comm(Comm),
    Win(Win),
    File(File),
    Session(Session),
}

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
    pub(crate) fn on(mut self: Box<Self>, comm: &Arc<CommObject>) -> Box<Self> {
        self.on = Some(Arc::clone(comm));
        self
    }
}

impl From<onecopy::Error> for Box<Failure> {
    #[cold]
    fn from(error: onecopy::Error) -> Self {
        use onecopy::Error as E;
        let class = match &error {
            E::PeerDied { .. }
            | E::PeerLeft { .. }
            | E::Protocol { .. }
            | E::Unreachable { .. } => c::ERR_PROC_ABORTED,
            E::Truncated { .. } => c::ERR_TRUNCATE,
            E::NoSuchRank { .. } => c::ERR_RANK,
            E::BadTag { .. } => c::ERR_TAG,
            E::Alloc(_) | E::Segment(_) => c::ERR_NO_MEM,
            E::Collective { .. }
            | E::Knob(_)
            | E::TuneFile { .. }
            | E::Wireup(_)
            | E::Aborted { .. }
            | E::Forked => c::ERR_OTHER,
            _ => c::ERR_INTERN,
        };
        fail(class, error.to_string())
    }
}

/// The return code of a call.
#[inline(always)]
pub(crate) fn outcome(name: &'static str, on: On, result: Outcome<()>) -> i32 {
    match result {
        Ok(()) => c::SUCCESS,
        Err(failure) => raise(name, on, &failure),
    }
}

/// What a function gives that is not implemented.
#[cold]
pub(crate) fn unsupported(name: &'static str, on: On) -> i32 {
    let failure = fail(
        c::ERR_UNSUPPORTED_OPERATION,
        "not implemented; `onecopy info mpi` lists what is",
    );
    raise(name, on, &failure)
}

/// The handler of an object that is there.
fn handler_of(on: On) -> Option<Handler> {
    match on {
        On::Comm(handle) => comm::lookup(handle).map(|comm| comm.handler()),
        // The default of files is to return, and there are no windows yet whose handler could be another.
        On::File(_) | On::Win(_) => Some(Handler::Return),
        On::Nothing | On::Session(_) => None,
    }
}

/// Hands a failure to the error handler of its object, and gives the code to return.
#[cold]
pub(crate) fn raise(name: &'static str, on: On, failure: &Failure) -> i32 {
    errors::remember(name, failure);
    let (on, handler) = match (&failure.on, on) {
        (Some(comm), _) => (On::Comm(comm.handle()), Some(comm.handler())),
        (None, on) => (on, handler_of(on)),
    };
    let handler = handler.unwrap_or_else(|| match job::own() {
        Some(own) => own.handler(),
        None => errors::initial(),
    });
    match handler {
        Handler::Return => failure.code,
        Handler::Fatal | Handler::Abort => {
            let rank =
                job::world().map_or_else(String::new, |world| format!("rank {}: ", world.rank));
            // Calls of other threads fail when the job is aborted, which is no news.
            if !job::is_aborted() {
                errors::report(&format!(
                    "onecopy: {rank}{name}: {}: {}",
                    errors::class_name(failure.code),
                    failure.text
                ));
            }
            job::abort(failure.code)
        }
        Handler::User(user) => {
            let handle = match on {
                On::Comm(comm) => comm.0,
                On::Win(win) => win.0,
                On::File(file) => file.0,
                On::Session(session) => session.0,
                On::Nothing => c::COMM_SELF.0,
            };
            user.call(handle, failure.code);
            failure.code
        }
    }
}
