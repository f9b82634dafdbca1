// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fortran's types by precision and range.

use super::contents::Contents;
use super::{Datatype, TypeObject, get};
use crate::failure::{Outcome, fail};
use crate::ffi::Out;
use crate::{c, phase};
use onecopy_shm::sync::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// By combiner, precision and range: the same arguments always give the same handle.
static KNOWN: Mutex<BTreeMap<(i32, i32, i32), usize>> = Mutex::new(BTreeMap::new());

fn create(
    combiner: i32,
    p: i32,
    r: i32,
    base: Datatype,
    ints: &[i32],
    new: Out<Datatype>,
) -> Outcome<()> {
    let mut known = phase::lock(&KNOWN);
    if let Some(&handle) = known.get(&(combiner, p, r)) {
        return new.set(Datatype(handle));
    }
    let base = get(base)?;
    let contents = Contents::made(combiner, false, Vec::new());
    let contents = contents.ints(ints).is(base.named());
    let object = Arc::new(TypeObject::new(base.shape.clone(), contents));
    object.committed.store(true, Ordering::Relaxed);
    let handle = super::keep(Arc::clone(&object))?;
    let _ = object.permanent.set(handle);
    known.insert((combiner, p, r), handle.0);
    new.set(handle)
}

/// Bytes of a real with at least this precision and range, in decimal digits.
fn real_bytes(p: i32, r: i32) -> Outcome<usize> {
    let wanted = |value| if value == c::UNDEFINED { 0 } else { value };
    let (p, r) = (wanted(p), wanted(r));
    [(4, 6, 37), (8, 15, 307), (16, 33, 4931)]
        .into_iter()
        .find(|&(_, precision, range)| p <= precision && r <= range)
        .map(|(bytes, ..)| bytes)
        .ok_or_else(|| {
            fail(
                c::ERR_ARG,
                format!("no real has {p} digits and a range of 10^{r}"),
            )
        })
}

pub(crate) fn type_create_f90_real(p: i32, r: i32, new: Out<Datatype>) -> Outcome<()> {
    let base = match real_bytes(p, r)? {
        4 => c::REAL4,
        8 => c::REAL8,
        _ => c::REAL16,
    };
    create(c::COMBINER_F90_REAL, p, r, base, &[p, r], new)
}

pub(crate) fn type_create_f90_complex(p: i32, r: i32, new: Out<Datatype>) -> Outcome<()> {
    let base = match real_bytes(p, r)? {
        4 => c::COMPLEX8,
        8 => c::COMPLEX16,
        _ => c::COMPLEX32,
    };
    create(c::COMBINER_F90_COMPLEX, p, r, base, &[p, r], new)
}

pub(crate) fn type_create_f90_integer(r: i32, new: Out<Datatype>) -> Outcome<()> {
    let base = [
        (2, c::INTEGER1),
        (4, c::INTEGER2),
        (9, c::INTEGER4),
        (18, c::INTEGER8),
        (38, c::INTEGER16),
    ]
    .into_iter()
    .find(|&(range, _)| r <= range)
    .map(|(_, base)| base)
    .ok_or_else(|| fail(c::ERR_ARG, format!("no integer has a range of 10^{r}")))?;
    create(c::COMBINER_F90_INTEGER, r, 0, base, &[r], new)
}
