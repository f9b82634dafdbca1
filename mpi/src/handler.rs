// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error handlers: what is done with a failure, and how many use a handler of the program.

use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Callback, Errhandler, Out};
use crate::handle::Table;
use crate::{c, callback, phase};
use onecopy_shm::sync::{AtomicU32, Ordering};

/// What is done with an error.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Handler {
    Fatal,
    Abort,
    Return,
    User(User),
}

/// A handler of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    function: Callback,
    /// Its handle.
    handle: usize,
}

impl User {
    pub(crate) fn call(self, object: usize, code: i32) {
        callback::error_handler(self.function, object, code);
    }
}

struct Object {
    function: Callback,
    kind: Kind,
    /// The program's handles and the objects that use it.
    uses: AtomicU32,
    /// The program's handles.
    owned: AtomicU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Comm,
    Win,
    Session,
}

static HANDLERS: Table<Object> = Table::new(1);

/// The handler of errors before and after the job: also a session's or a program's own choice, should it make one.
pub(crate) fn initial() -> Handler {
    Handler::Fatal
}

pub(crate) fn bad_handler(handle: Errhandler) -> Box<Failure> {
    fail(
        c::ERR_ERRHANDLER,
        format!(
            "{:#x} is no error handler for this kind of object",
            handle.0
        ),
    )
}

pub(crate) fn resolve(handle: Errhandler, kind: Kind) -> Outcome<Handler> {
    Ok(match handle {
        c::ERRORS_ARE_FATAL => Handler::Fatal,
        c::ERRORS_ABORT => Handler::Abort,
        c::ERRORS_RETURN => Handler::Return,
        _ => {
            let object = HANDLERS
                .get(handle.0)
                .filter(|object| object.kind == kind && object.owned.load(Ordering::Relaxed) > 0)
                .ok_or_else(|| bad_handler(handle))?;
            object.uses.fetch_add(1, Ordering::Relaxed);
            Handler::User(User {
                function: object.function,
                handle: handle.0,
            })
        }
    })
}

impl Handler {
    /// The handle, which the program is to free.
    pub(crate) fn handle(self) -> Errhandler {
        match self.share() {
            Self::Fatal => c::ERRORS_ARE_FATAL,
            Self::Abort => c::ERRORS_ABORT,
            Self::Return => c::ERRORS_RETURN,
            Self::User(user) => {
                if let Some(object) = HANDLERS.get(user.handle) {
                    object.owned.fetch_add(1, Ordering::Relaxed);
                }
                Errhandler(user.handle)
            }
        }
    }

    /// One more use of the same handler.
    pub(crate) fn share(self) -> Self {
        if let Self::User(user) = self
            && let Some(object) = HANDLERS.get(user.handle)
        {
            object.uses.fetch_add(1, Ordering::Relaxed);
        }
        self
    }

    /// Ends a use.
    pub(crate) fn release(self) {
        if let Self::User(user) = self
            && let Some(object) = HANDLERS.get(user.handle)
            && object.uses.fetch_sub(1, Ordering::AcqRel) == 1
        {
            HANDLERS.remove(user.handle);
        }
    }
}

pub(crate) fn create(function: Callback, kind: Kind, errhandler: Out<Errhandler>) -> Outcome<()> {
    if function.number() == 0 {
        return Err(fail(c::ERR_ARG, "the function of an error handler is null"));
    }
    let object = Object {
        function,
        kind,
        uses: AtomicU32::new(1),
        owned: AtomicU32::new(1),
    };
    let handle = HANDLERS.insert(object).ok_or_else(phase::too_many)?;
    errhandler.set(Errhandler(handle))
}

/// Frees the program's handle.
pub(crate) fn free(errhandler: Out<Errhandler>) -> Outcome<()> {
    let handle = errhandler.get()?;
    match handle {
        // Predefined handlers may be freed as what Comm_get_errhandler gave; they stay.
        c::ERRORS_ARE_FATAL | c::ERRORS_ABORT | c::ERRORS_RETURN => {}
        _ => {
            let object = HANDLERS.get(handle.0).ok_or_else(|| bad_handler(handle))?;
            let less = |owned: u32| owned.checked_sub(1);
            object
                .owned
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                .map_err(|_| bad_handler(handle))?;
            if object.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
                HANDLERS.remove(handle.0);
            }
        }
    }
    errhandler.set(c::ERRHANDLER_NULL)
}
