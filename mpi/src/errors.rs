// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error handling: handlers, classes, codes, strings.

use crate::codes::{CLASSES, class_of, with_added};
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Callback, Comm, Errhandler, Out, OutText, Text};
use crate::handler::{self, Kind, create, resolve};
use crate::raise::{ErrorTarget, raise};
use crate::{c, codes, comm};

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
    raise(
        "MPI_Comm_call_errhandler",
        ErrorTarget::Comm(comm),
        &failure,
    );
    Ok(())
}

pub(crate) fn errhandler_free(errhandler: Out<Errhandler>) -> Outcome<()> {
    handler::free(errhandler)
}

pub(crate) fn error_class(code: i32, class: Out<i32>) -> Outcome<()> {
    let found =
        class_of(code).ok_or_else(|| fail(c::ERR_ARG, format!("{code} is no error code")))?;
    class.set(found)
}

pub(crate) fn error_string(code: i32, string: OutText, len: Out<i32>) -> Outcome<()> {
    class_of(code).ok_or_else(|| fail(c::ERR_ARG, format!("{code} is no error code")))?;
    let text = match CLASSES.get(code as usize) {
        Some((name, words)) => {
            let last = codes::last_words(code);
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
