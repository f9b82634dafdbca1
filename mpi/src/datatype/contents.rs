// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a datatype was made: envelope and contents.
#![expect(clippy::too_many_arguments, reason = "signatures of the standard")]

use super::predefined::Element;
use super::{TypeObject, get, reveal};
use crate::c;
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Datatype, Out};
use std::sync::Arc;

/// The call that made a datatype, with its arguments in the order of the standard.
#[derive(Clone)]
pub(crate) struct Contents {
    combiner: i32,
    /// Made by a form with large counts.
    wide: bool,
    /// Arguments that are integers in either form.
    integers: Vec<i64>,
    /// Counts in a form with large counts; otherwise they are among the integers.
    counts: Vec<i64>,
    addresses: Vec<i64>,
    types: Vec<Arc<TypeObject>>,
    named: Option<Element>,
}

impl Contents {
    /// A predefined datatype.
    pub(crate) fn of(element: Element) -> Self {
        Self {
            combiner: c::COMBINER_NAMED,
            wide: false,
            integers: Vec::new(),
            counts: Vec::new(),
            addresses: Vec::new(),
            types: Vec::new(),
            named: Some(element),
        }
    }

    /// Made by `combiner` from `types`.
    pub(crate) fn made(combiner: i32, wide: bool, types: Vec<Arc<TypeObject>>) -> Self {
        Self {
            combiner,
            wide,
            integers: Vec::new(),
            counts: Vec::new(),
            addresses: Vec::new(),
            types,
            named: None,
        }
    }

    /// Arguments that are `int` in both forms.
    pub(crate) fn ints(mut self, values: &[i32]) -> Self {
        self.integers
            .extend(values.iter().map(|&value| i64::from(value)));
        self
    }

    /// Arguments that are counts.
    pub(crate) fn counts(mut self, values: &[i64]) -> Self {
        if self.wide {
            self.counts.extend_from_slice(values);
        } else {
            self.integers.extend_from_slice(values);
        }
        self
    }

    /// Arguments that are addresses, or counts in a form with large counts.
    pub(crate) fn addresses(mut self, values: &[i64]) -> Self {
        if self.wide {
            self.counts.extend_from_slice(values);
        } else {
            self.addresses.extend_from_slice(values);
        }
        self
    }

    /// Made of a predefined datatype that it does not differ from.
    pub(crate) fn is(mut self, named: Option<Element>) -> Self {
        self.named = named;
        self
    }

    pub(crate) fn named(&self) -> Option<Element> {
        self.named
    }

    /// Whether the program may not free it.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(
            self.combiner,
            c::COMBINER_NAMED
                | c::COMBINER_F90_REAL
                | c::COMBINER_F90_COMPLEX
                | c::COMBINER_F90_INTEGER
        )
    }
}

pub(crate) fn type_get_envelope(
    datatype: Datatype,
    integers: Out<i32>,
    addresses: Out<i32>,
    types: Out<i32>,
    combiner: Out<i32>,
) -> Outcome<()> {
    let contents = &get(datatype)?.contents;
    if contents.wide {
        return Err(made_wide());
    }
    integers.set(contents.integers.len() as i32)?;
    addresses.set(contents.addresses.len() as i32)?;
    types.set(contents.types.len() as i32)?;
    combiner.set(contents.combiner)
}

fn made_wide() -> Box<Failure> {
    fail(
        c::ERR_TYPE,
        "the datatype was made with large counts; ask the function that ends with _c",
    )
}

pub(crate) fn type_get_envelope_c(
    datatype: Datatype,
    integers: Out<i64>,
    addresses: Out<i64>,
    counts: Out<i64>,
    types: Out<i64>,
    combiner: Out<i32>,
) -> Outcome<()> {
    let contents = &get(datatype)?.contents;
    integers.set(contents.integers.len() as i64)?;
    addresses.set(contents.addresses.len() as i64)?;
    counts.set(contents.counts.len() as i64)?;
    types.set(contents.types.len() as i64)?;
    combiner.set(contents.combiner)
}

pub(crate) fn type_get_contents(
    datatype: Datatype,
    max_integers: i32,
    max_addresses: i32,
    max_types: i32,
    integers: Out<i32>,
    addresses: Out<i64>,
    types: Out<Datatype>,
) -> Outcome<()> {
    let contents = &get(datatype)?.contents;
    if contents.wide {
        return Err(made_wide());
    }
    let room = [max_integers, max_addresses, max_types].map(i64::from);
    put(contents, room, integers, addresses, types)
}

fn put(
    contents: &Contents,
    room: [i64; 3],
    integers: Out<i32>,
    addresses: Out<i64>,
    types: Out<Datatype>,
) -> Outcome<()> {
    if contents.combiner == c::COMBINER_NAMED {
        return Err(fail(c::ERR_TYPE, "a predefined datatype has no contents"));
    }
    let needed = [
        contents.integers.len(),
        contents.addresses.len(),
        contents.types.len(),
    ];
    if needed
        .iter()
        .zip(room)
        .any(|(&needed, room)| needed as i64 > room)
    {
        return Err(fail(
            c::ERR_ARG,
            "an array is shorter than what MPI_Type_get_envelope said",
        ));
    }
    for (index, &value) in contents.integers.iter().enumerate() {
        integers.set_at(index, value as i32)?;
    }
    addresses.set_all(&contents.addresses)?;
    for (index, object) in contents.types.iter().enumerate() {
        types.set_at(index, reveal(object)?)?;
    }
    Ok(())
}

pub(crate) fn type_get_contents_c(
    datatype: Datatype,
    max_integers: i64,
    max_addresses: i64,
    max_counts: i64,
    max_types: i64,
    integers: Out<i32>,
    addresses: Out<i64>,
    counts: Out<i64>,
    types: Out<Datatype>,
) -> Outcome<()> {
    let contents = &get(datatype)?.contents;
    if contents.counts.len() as i64 > max_counts {
        return Err(fail(c::ERR_ARG, "the array of counts is too short"));
    }
    let room = [max_integers, max_addresses, max_types];
    put(contents, room, integers, addresses, types)?;
    counts.set_all(&contents.counts)
}
