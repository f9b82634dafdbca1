// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the failure of a call reaches the error handler of its object.

use crate::comm::CommObject;
use crate::failure::{Failure, Outcome, Owner, fail};
use crate::ffi::{Comm, File, Session, Win};
use crate::handler::{self, Handler};
use crate::{c, codes, comm, phase};

/// The object whose handler an error goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorTarget {
    Nothing,
    Comm(Comm),
    Win(Win),
    File(File),
    Session(Session),
}

/// The return code of a call.
#[inline(always)]
pub(crate) fn outcome(name: &'static str, on: ErrorTarget, result: Outcome<()>) -> i32 {
    match result {
        Ok(()) => c::SUCCESS,
        Err(failure) => raise(name, on, &failure),
    }
}

/// What a function gives that is not implemented.
#[cold]
pub(crate) fn unsupported(name: &'static str, on: ErrorTarget) -> i32 {
    let failure = fail(
        c::ERR_UNSUPPORTED_OPERATION,
        "not implemented; `onecopy info mpi` lists what is",
    );
    raise(name, on, &failure)
}

/// The handler of an object that is there.
fn handler_of(on: ErrorTarget) -> Option<Handler> {
    match on {
        ErrorTarget::Comm(handle) => comm::lookup(handle).map(|comm| comm.handler()),
        // The default of files is to return, and there are no windows yet whose handler could be another.
        ErrorTarget::File(_) | ErrorTarget::Win(_) => Some(Handler::Return),
        ErrorTarget::Nothing | ErrorTarget::Session(_) => None,
    }
}

/// Hands a failure to the error handler of its object, and gives the code to return.
#[cold]
pub(crate) fn raise(name: &'static str, on: ErrorTarget, failure: &Failure) -> i32 {
    codes::remember(name, failure);
    if let Some(owner) = &failure.on {
        return owner.raise(name, failure);
    }
    let handler = handler_of(on).unwrap_or_else(|| match comm::own() {
        Some(own) => own.handler(),
        None => handler::initial(),
    });
    hand_to(handler, name, on, failure)
}

impl Owner for CommObject {
    fn raise(&self, name: &'static str, failure: &Failure) -> i32 {
        hand_to(
            self.handler(),
            name,
            ErrorTarget::Comm(self.handle()),
            failure,
        )
    }
}

fn hand_to(handler: Handler, name: &'static str, on: ErrorTarget, failure: &Failure) -> i32 {
    match handler {
        Handler::Return => failure.code,
        Handler::Fatal | Handler::Abort => {
            let rank =
                comm::world().map_or_else(String::new, |world| format!("rank {}: ", world.rank));
            // Calls of other threads fail when the job is aborted, which is no news.
            if !phase::is_aborted() {
                codes::report(&format!(
                    "onecopy: {rank}{name}: {}: {}",
                    codes::class_name(failure.code),
                    failure.text
                ));
            }
            phase::abort(failure.code)
        }
        Handler::User(user) => {
            let handle = match on {
                ErrorTarget::Comm(comm) => comm.0,
                ErrorTarget::Win(win) => win.0,
                ErrorTarget::File(file) => file.0,
                ErrorTarget::Session(session) => session.0,
                ErrorTarget::Nothing => c::COMM_SELF.0,
            };
            user.call(handle, failure.code);
            failure.code
        }
    }
}
