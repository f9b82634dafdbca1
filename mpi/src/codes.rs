// SPDX-License-Identifier: MIT OR Apache-2.0
//! Classes and codes of errors, and the words for them.

use crate::failure::Failure;
use crate::{c, phase};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard};

/// Names and descriptions of the standard's classes; the place is the class.
pub(crate) const CLASSES: [(&str, &str); 63] = [
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
pub(crate) struct AddedCodes {
    /// Each code with its class; a class is a code of its own class.
    pub(crate) codes: BTreeMap<i32, i32>,
    pub(crate) strings: BTreeMap<i32, Vec<u8>>,
    pub(crate) last: i32,
}

static ADDED: Mutex<Option<AddedCodes>> = Mutex::new(None);

fn added() -> MutexGuard<'static, Option<AddedCodes>> {
    let mut added = phase::lock(&ADDED);
    added.get_or_insert_with(|| AddedCodes {
        last: c::ERR_LASTCODE,
        ..AddedCodes::default()
    });
    added
}

pub(crate) fn with_added<R>(f: impl FnOnce(&mut AddedCodes) -> R) -> R {
    f(added().get_or_insert_default())
}

/// The largest code in use.
pub(crate) fn last_used_code() -> i32 {
    with_added(|added| added.last)
}

pub(crate) fn class_of(code: i32) -> Option<i32> {
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

/// What the last failure of this thread was, in brackets, if it has this code.
pub(crate) fn last_words(code: i32) -> String {
    let last = LAST.try_with(|last| match &*last.borrow() {
        Some((last, detail)) if *last == code => format!(" ({detail})"),
        _ => String::new(),
    });
    last.unwrap_or_default()
}

/// Writes a line to standard error.
pub(crate) fn report(line: &str) {
    // In one piece: the process may end, or be ended, at once.
    let line = format!("{line}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
