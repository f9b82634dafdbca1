// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error handling: handlers, classes, codes, strings.

use crate::failure::{Failure, On, Outcome, fail, raise};
use crate::ffi::{Callback, Comm, Errhandler, Out, OutText, Text};
use crate::handle::Table;
use crate::{c, callback, comm, job};
use onecopy_shm::sync::{AtomicU32, Ordering};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
enum Kind {
    Comm,
    Win,
    Session,
}

static HANDLERS: Table<Object> = Table::new(1);

/// The handler of errors before and after the job: also a session's or a program's own choice, should it make one.
pub(crate) fn initial() -> Handler {
    Handler::Fatal
}

fn bad_handler(handle: Errhandler) -> Box<Failure> {
    fail(
        c::ERR_ERRHANDLER,
        format!(
            "{:#x} is no error handler for this kind of object",
            handle.0
        ),
    )
}

fn resolve(handle: Errhandler, kind: Kind) -> Outcome<Handler> {
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

fn create(function: Callback, kind: Kind, errhandler: Out<Errhandler>) -> Outcome<()> {
    if function.number() == 0 {
        return Err(fail(c::ERR_ARG, "the function of an error handler is null"));
    }
    let object = Object {
        function,
        kind,
        uses: AtomicU32::new(1),
        owned: AtomicU32::new(1),
    };
    let handle = HANDLERS.insert(object).ok_or_else(job::too_many)?;
    errhandler.set(Errhandler(handle))
}

pub(crate) fn comm_create_errhandler(
    function: Callback,
    errhandler: Out<Errhandler>,
) -> Outcome<()> {
    create(function, Kind::Comm, errhandler)
}

pub(crate) fn win_create_errhandler(
    function: Callback,
    errhandler: Out<Errhandler>,
) -> Outcome<()> {
    create(function, Kind::Win, errhandler)
}

pub(crate) fn session_create_errhandler(
    function: Callback,
    errhandler: Out<Errhandler>,
) -> Outcome<()> {
    create(function, Kind::Session, errhandler)
}

pub(crate) fn comm_set_errhandler(comm: Comm, errhandler: Errhandler) -> Outcome<()> {
    let comm = &comm::get(comm)?;
    comm.set_handler(resolve(errhandler, Kind::Comm)?);
    Ok(())
}

pub(crate) fn comm_get_errhandler(comm: Comm, errhandler: Out<Errhandler>) -> Outcome<()> {
    errhandler.set(comm::get(comm)?.handler().handle())
}

pub(crate) fn comm_call_errhandler(comm: Comm, code: i32) -> Outcome<()> {
    comm::get(comm)?;
    let failure = Failure {
        code,
        text: "the program called the error handler".into(),
        on: None,
    };
    raise("MPI_Comm_call_errhandler", On::Comm(comm), &failure);
    Ok(())
}

pub(crate) fn errhandler_free(errhandler: Out<Errhandler>) -> Outcome<()> {
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

/// Names and descriptions of the standard's classes; the place is the class.
const CLASSES: [(&str, &str); 63] = [
    ("MPI_SUCCESS", "no error"),
    ("MPI_ERR_BUFFER", "invalid buffer pointer"),
    ("MPI_ERR_COUNT", "invalid count argument"),
    ("MPI_ERR_TYPE", "invalid datatype argument"),
    ("MPI_ERR_TAG", "invalid tag argument"),
    ("MPI_ERR_COMM", "invalid communicator"),
    ("MPI_ERR_RANK", "invalid rank"),
    ("MPI_ERR_REQUEST", "invalid request"),
    ("MPI_ERR_ROOT", "invalid root"),
    ("MPI_ERR_GROUP", "invalid group"),
    ("MPI_ERR_OP", "invalid operation"),
    ("MPI_ERR_TOPOLOGY", "invalid topology"),
    ("MPI_ERR_DIMS", "invalid dimension argument"),
    ("MPI_ERR_ARG", "invalid argument"),
    ("MPI_ERR_UNKNOWN", "unknown error"),
    ("MPI_ERR_TRUNCATE", "message truncated on receive"),
    ("MPI_ERR_OTHER", "an error of another kind"),
    ("MPI_ERR_INTERN", "internal error"),
    ("MPI_ERR_PENDING", "pending request"),
    ("MPI_ERR_IN_STATUS", "the error code is in the status"),
    ("MPI_ERR_ACCESS", "permission denied"),
    ("MPI_ERR_AMODE", "invalid access mode of a file"),
    ("MPI_ERR_ASSERT", "invalid assertion"),
    ("MPI_ERR_BAD_FILE", "invalid file name"),
    ("MPI_ERR_BASE", "invalid base passed to MPI_Free_mem"),
    ("MPI_ERR_CONVERSION", "a user's data conversion failed"),
    ("MPI_ERR_DISP", "invalid displacement"),
    (
        "MPI_ERR_DUP_DATAREP",
        "the data representation is defined already",
    ),
    ("MPI_ERR_FILE_EXISTS", "the file exists"),
    ("MPI_ERR_FILE_IN_USE", "the file is open in some process"),
    ("MPI_ERR_FILE", "invalid file handle"),
    ("MPI_ERR_INFO_KEY", "the info key is too long or empty"),
    ("MPI_ERR_INFO_NOKEY", "the info key is not there"),
    ("MPI_ERR_INFO_VALUE", "the info value is too long or empty"),
    ("MPI_ERR_INFO", "invalid info object"),
    ("MPI_ERR_IO", "input or output failed"),
    ("MPI_ERR_KEYVAL", "invalid attribute key"),
    ("MPI_ERR_LOCKTYPE", "invalid lock type"),
    ("MPI_ERR_NAME", "no service of that name is published"),
    ("MPI_ERR_NO_MEM", "out of memory"),
    ("MPI_ERR_NOT_SAME", "an argument differs between processes"),
    ("MPI_ERR_NO_SPACE", "no space left on the device"),
    ("MPI_ERR_NO_SUCH_FILE", "the file does not exist"),
    ("MPI_ERR_PORT", "invalid port name"),
    ("MPI_ERR_QUOTA", "the quota is exceeded"),
    ("MPI_ERR_READ_ONLY", "the file or file system is read-only"),
    ("MPI_ERR_RMA_ATTACH", "memory cannot be attached"),
    ("MPI_ERR_RMA_CONFLICT", "conflicting accesses to a window"),
    (
        "MPI_ERR_RMA_RANGE",
        "target memory is not part of the window",
    ),
    ("MPI_ERR_RMA_SHARED", "memory cannot be shared"),
    (
        "MPI_ERR_RMA_SYNC",
        "wrong synchronization of one-sided calls",
    ),
    ("MPI_ERR_SERVICE", "no such service to unpublish"),
    ("MPI_ERR_SIZE", "invalid size"),
    ("MPI_ERR_SPAWN", "processes could not be started"),
    (
        "MPI_ERR_UNSUPPORTED_DATAREP",
        "unsupported data representation",
    ),
    ("MPI_ERR_UNSUPPORTED_OPERATION", "unsupported operation"),
    ("MPI_ERR_WIN", "invalid window"),
    ("MPI_ERR_RMA_FLAVOR", "the window has the wrong flavour"),
    ("MPI_ERR_PROC_ABORTED", "a process has died or left"),
    (
        "MPI_ERR_VALUE_TOO_LARGE",
        "the value does not fit the result",
    ),
    ("MPI_ERR_SESSION", "invalid session"),
    ("MPI_ERR_ERRHANDLER", "invalid error handler"),
    ("MPI_ERR_ABI", "the ABI does not provide this"),
];

/// Codes and classes that the program added.
#[derive(Default)]
struct Added {
    /// Each code with its class; a class is a code of its own class.
    codes: BTreeMap<i32, i32>,
    strings: BTreeMap<i32, Vec<u8>>,
    last: i32,
}

static ADDED: Mutex<Option<Added>> = Mutex::new(None);

fn added() -> MutexGuard<'static, Option<Added>> {
    let mut added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    added.get_or_insert_with(|| Added {
        last: c::ERR_LASTCODE,
        ..Added::default()
    });
    added
}

fn with_added<R>(f: impl FnOnce(&mut Added) -> R) -> R {
    f(added().get_or_insert_default())
}

/// The largest code in use.
pub(crate) fn last_used_code() -> i32 {
    with_added(|added| added.last)
}

fn class_of(code: i32) -> Option<i32> {
    if (0..CLASSES.len() as i32).contains(&code) || code == c::ERR_LASTCODE {
        return Some(code);
    }
    if (c::T_ERR_CANNOT_INIT..=c::T_ERR_PVAR_NO_ATOMIC).contains(&code) {
        return Some(code);
    }
    with_added(|added| added.codes.get(&code).copied())
}

/// The name of a code's class.
pub(crate) fn class_name(code: i32) -> String {
    class_of(code)
        .and_then(|class| CLASSES.get(class as usize))
        .map_or_else(|| format!("error {code}"), |(name, _)| (*name).to_owned())
}

thread_local! {
    /// The last failure of this thread: its code and what it was.
    static LAST: RefCell<Option<(i32, String)>> = const { RefCell::new(None) };
}

/// Keeps the words of a failure for `MPI_Error_string`.
pub(crate) fn remember(name: &str, failure: &Failure) {
    // At the exit of a program its threads' own memory is gone before its handlers run.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Some((failure.code, format!("{name}: {}", failure.text)));
    });
}

/// Writes a line to standard error.
pub(crate) fn report(line: &str) {
    // In one piece: the process may end, or be ended, at once.
    let line = format!("{line}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

pub(crate) fn error_class(code: i32, class: Out<i32>) -> Outcome<()> {
    let of = class_of(code).ok_or_else(|| fail(c::ERR_ARG, format!("{code} is no error code")))?;
    class.set(of)
}

pub(crate) fn error_string(code: i32, string: OutText, len: Out<i32>) -> Outcome<()> {
    class_of(code).ok_or_else(|| fail(c::ERR_ARG, format!("{code} is no error code")))?;
    let text = match CLASSES.get(code as usize) {
        Some((name, words)) => {
            let last = LAST.try_with(|last| match &*last.borrow() {
                Some((of, detail)) if *of == code => format!(" ({detail})"),
                _ => String::new(),
            });
            let last = last.unwrap_or_default();
            format!("{name}: {words}{last}").into_bytes()
        }
        None if code == c::ERR_LASTCODE => "MPI_ERR_LASTCODE: the last code of the standard".into(),
        None if code < c::ERR_LASTCODE => {
            format!("an error of the tool interface, {code}").into_bytes()
        }
        None => with_added(|added| added.strings.get(&code).cloned().unwrap_or_default()),
    };
    len.set(string.set(&text, c::MAX_ERROR_STRING as usize)? as i32)
}

pub(crate) fn add_error_class(class: Out<i32>) -> Outcome<()> {
    let fresh = with_added(|added| {
        added.last += 1;
        added.codes.insert(added.last, added.last);
        added.last
    });
    class.set(fresh)
}

pub(crate) fn add_error_code(class: i32, code: Out<i32>) -> Outcome<()> {
    if class_of(class) != Some(class) {
        return Err(fail(c::ERR_ARG, format!("{class} is no error class")));
    }
    let fresh = with_added(|added| {
        added.last += 1;
        added.codes.insert(added.last, class);
        added.last
    });
    code.set(fresh)
}

fn check_added(code: i32) -> Outcome<()> {
    if with_added(|added| added.codes.contains_key(&code)) {
        Ok(())
    } else {
        Err(fail(
            c::ERR_ARG,
            format!("{code} is no error code that the program added"),
        ))
    }
}

pub(crate) fn add_error_string(code: i32, string: Text) -> Outcome<()> {
    check_added(code)?;
    let text = string.get()?;
    if text.len() >= c::MAX_ERROR_STRING as usize {
        return Err(fail(c::ERR_ARG, "the string is too long"));
    }
    with_added(|added| added.strings.insert(code, text));
    Ok(())
}

fn remove(code: i32, is_class: bool) -> Outcome<()> {
    check_added(code)?;
    with_added(|added| {
        let used = added
            .codes
            .iter()
            .any(|(&other, &class)| class == code && other != code);
        let kind = (added.codes.get(&code) == Some(&code)) == is_class;
        if used || !kind || added.strings.contains_key(&code) {
            return Err(fail(
                c::ERR_ARG,
                format!("{code} still has codes or a string, or is of the other kind"),
            ));
        }
        added.codes.remove(&code);
        // What was added last may be given again.
        let last = added.codes.keys().next_back().copied();
        added.last = last.unwrap_or(c::ERR_LASTCODE);
        Ok(())
    })
}

pub(crate) fn remove_error_class(class: i32) -> Outcome<()> {
    remove(class, true)
}

pub(crate) fn remove_error_code(code: i32) -> Outcome<()> {
    remove(code, false)
}

pub(crate) fn remove_error_string(code: i32) -> Outcome<()> {
    check_added(code)?;
    match with_added(|added| added.strings.remove(&code)) {
        Some(_) => Ok(()),
        None => Err(fail(c::ERR_ARG, format!("error code {code} has no string"))),
    }
}
