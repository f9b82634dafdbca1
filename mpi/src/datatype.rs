// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datatypes.
//!
//! A datatype has a *shape* ([`shape`]): its typemap, which says what the elements are, and its layout ([`layout`]),
//! which says which bytes they occupy. Transfers and packing look at the layout alone; the external representation and
//! the count of elements need the typemap.

mod contents;
mod create;
mod fortran;
pub(crate) mod layout;
pub(crate) mod predefined;
pub(crate) mod shape;

pub(crate) use contents::*;
pub(crate) use create::*;
pub(crate) use fortran::*;

use crate::attributes::Attributes;
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Addr, Datatype, Out, OutInts, OutText, Text};
use crate::handle::{Table, Uses};
use crate::{attributes, c, phase};
use contents::Contents;
use onecopy_shm::sync::{AtomicBool, Ordering};
use predefined::{Element, Kind};
use shape::Shape;
use std::sync::{Arc, Mutex, OnceLock};

/// A datatype.
pub(crate) struct TypeObject {
    pub(crate) shape: Shape,
    pub(crate) contents: Contents,
    committed: AtomicBool,
    name: Mutex<Vec<u8>>,
    pub(crate) attributes: Mutex<Attributes>,
    /// The only handle, of a datatype that the program may not free.
    permanent: OnceLock<Datatype>,
    uses: Uses,
}

impl TypeObject {
    fn new(shape: Shape, contents: Contents) -> Self {
        Self {
            shape,
            contents,
            committed: AtomicBool::new(false),
            name: Mutex::default(),
            attributes: Mutex::new(Attributes::default()),
            permanent: OnceLock::new(),
            uses: Uses::new(),
        }
    }

    /// Another datatype that is the same but for its attributes.
    fn twin(&self) -> Self {
        let twin = Self::new(self.shape.clone(), self.contents.clone());
        let committed = self.committed.load(Ordering::Relaxed);
        twin.committed.store(committed, Ordering::Relaxed);
        twin
    }

    /// Bytes of the packed form.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.shape.size()
    }

    /// Bytes of the packed form of so many instances.
    #[inline]
    pub(crate) fn bytes(&self, count: u64) -> Outcome<u64> {
        addressable(self.size().checked_mul(count))
    }

    /// As [`Self::bytes`], of a buffer that is there. Only a datatype of the program can have its bytes at addresses of
    /// their own.
    #[inline]
    pub(crate) fn bytes_at(&self, buf: Addr, count: u64) -> Outcome<u64> {
        let bytes = self.bytes(count)?;
        let dense = self.shape.dense(count);
        if dense.is_none() {
            self.shape.reach_of(count)?;
        }
        let first = dense.map(|offset| buf.offset(offset));
        let is_nowhere = first.is_some_and(Addr::is_nowhere)
            || buf.is_in_place()
            || (buf.is_nowhere() && self.named().is_some());
        if bytes > 0 && is_nowhere {
            return Err(nowhere(buf));
        }
        Ok(bytes)
    }

    /// Bytes from a buffer's begin to the instance of this number.
    #[inline]
    pub(crate) fn displacement(&self, number: i64) -> Outcome<i64> {
        number
            .checked_mul(self.shape.extent())
            .ok_or_else(|| fail(c::ERR_COUNT, "a displacement beyond what can be addressed"))
    }

    /// What repeats itself in the packed form: its bytes, its basic elements.
    fn period(&self) -> (u64, u64) {
        match self.shape.uniform {
            Some(element) => (element.size() as u64, element.basics().len() as u64),
            None => (self.size(), self.shape.elements),
        }
    }

    /// Shows the sizes of the basic elements of a period to `f` until it says no. A pair is two of them.
    fn walk_basics(&self, f: &mut impl FnMut(u64) -> bool) {
        let mut each = |element: Element| element.basics().iter().all(|&size| f(size));
        match self.shape.uniform {
            Some(element) => each(element),
            None => self.shape.map.walk(0, &mut |element, _| each(element)),
        };
    }

    /// The number of basic elements in so many bytes of the packed form, if none is cut.
    pub(crate) fn elements_in(&self, bytes: u64) -> Option<u64> {
        let (size, elements) = self.period();
        if size == 0 || self.size() == 0 {
            return (bytes == 0).then_some(0);
        }
        let mut rest = bytes % size;
        let mut count = (bytes / size).checked_mul(elements)?;
        self.walk_basics(&mut |size| {
            let has_room = rest >= size;
            if has_room {
                rest -= size;
                count += 1;
            }
            has_room
        });
        (rest == 0).then_some(count)
    }

    /// Bytes of so many basic elements in the packed form; `None`: more than can be addressed.
    pub(crate) fn bytes_of_elements(&self, count: u64) -> Option<u64> {
        let (size, elements) = self.period();
        if elements == 0 || self.size() == 0 {
            return Some(0);
        }
        let mut rest = count % elements;
        let mut bytes = (count / elements).checked_mul(size);
        self.walk_basics(&mut |size| {
            if rest > 0 {
                rest -= 1;
                bytes = bytes.and_then(|bytes| bytes.checked_add(size));
            }
            rest > 0
        });
        bytes.filter(|&bytes| i64::try_from(bytes).is_ok())
    }

    /// The element, if this is a predefined datatype, also one of Fortran's that has no name.
    pub(crate) fn named(&self) -> Option<Element> {
        self.contents.named()
    }
}

/// The most bytes that a buffer can have: no process addresses more. Sums of a few such numbers do not overflow.
pub(crate) const LONGEST: usize = 1 << 56;

/// Checks a number of bytes: `None`, a product that overflowed, and more than [`LONGEST`] are errors.
#[inline]
pub(crate) fn addressable(bytes: Option<u64>) -> Outcome<u64> {
    bytes
        .filter(|&bytes| bytes <= LONGEST as u64)
        .ok_or_else(|| fail(c::ERR_COUNT, "more bytes than a buffer can have"))
}

/// The error of a buffer that is nowhere.
#[cold]
pub(crate) fn nowhere(buf: Addr) -> Box<Failure> {
    let reason = if buf.is_in_place() {
        "the buffer is MPI_IN_PLACE, which this argument cannot be"
    } else {
        "the buffer is null"
    };
    fail(c::ERR_BUFFER, reason)
}

/// So many bytes, if a buffer can have as many.
#[inline(always)]
pub(crate) fn in_a_buffer(bytes: Option<usize>) -> Option<usize> {
    bytes.filter(|&bytes| bytes <= LONGEST)
}

static TYPES: Table<Arc<TypeObject>> = Table::new(4);
static PREDEFINED: OnceLock<Vec<Option<Arc<TypeObject>>>> = OnceLock::new();

fn predefined_types() -> &'static [Option<Arc<TypeObject>>] {
    PREDEFINED.get_or_init(|| {
        (0x200..0x300)
            .map(|handle| {
                let element = Element::from_handle(handle)?;
                let object = TypeObject::new(Shape::of(element), Contents::of(element));
                object.committed.store(true, Ordering::Relaxed);
                let _ = object.permanent.set(Datatype(handle));
                let name = element.name().as_bytes();
                name.clone_into(&mut phase::lock(&object.name));
                Some(Arc::new(object))
            })
            .collect()
    })
}

#[cold]
fn bad_type(handle: Datatype) -> Box<Failure> {
    let what = if handle == c::DATATYPE_NULL {
        "MPI_DATATYPE_NULL was given".to_owned()
    } else {
        format!("{:#x} is no datatype", handle.0)
    };
    fail(c::ERR_TYPE, what)
}

/// The object of a handle.
#[inline]
pub(crate) fn get(handle: Datatype) -> Outcome<&'static Arc<TypeObject>> {
    let found = if handle.0 & !0xff == 0x200 {
        predefined_types()[handle.0 & 0xff].as_ref()
    } else {
        TYPES.get(handle.0)
    };
    found.ok_or_else(|| bad_type(handle))
}

/// The object of a handle that is used for communication.
#[inline]
pub(crate) fn committed(handle: Datatype) -> Outcome<&'static Arc<TypeObject>> {
    let object = get(handle)?;
    if phase::checks() && !object.committed.load(Ordering::Relaxed) {
        return Err(fail(
            c::ERR_TYPE,
            format!("datatype {:#x} was not committed", handle.0),
        ));
    }
    Ok(object)
}

/// A handle for a new datatype.
pub(crate) fn keep(object: Arc<TypeObject>) -> Outcome<Datatype> {
    TYPES
        .insert(object)
        .map(Datatype)
        .ok_or_else(phase::too_many)
}

/// A handle for a datatype that another one was made of. It is its own if it stays for ever, otherwise that of a new
/// datatype, which the program frees.
pub(crate) fn reveal(object: &TypeObject) -> Outcome<Datatype> {
    match object.permanent.get() {
        Some(&handle) => Ok(handle),
        None => keep(Arc::new(object.twin())),
    }
}

/// A datatype whose handle is good until this is dropped, also when the program frees it meanwhile. A request may be
/// started again, and a reduction of the program gets the handle.
pub(crate) struct HeldDatatype {
    handle: Datatype,
    object: Arc<TypeObject>,
}

/// Keeps a datatype, unless it stays anyway.
pub(crate) fn hold(handle: Datatype) -> Option<HeldDatatype> {
    let object = Arc::clone(TYPES.get(handle.0)?);
    object.uses.add();
    Some(HeldDatatype { handle, object })
}

impl Drop for HeldDatatype {
    fn drop(&mut self) {
        if self.object.uses.end() {
            TYPES.remove(self.handle.0);
        }
    }
}

pub(crate) fn type_commit(datatype: Out<Datatype>) -> Outcome<()> {
    get(datatype.get()?)?
        .committed
        .store(true, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn type_free(datatype: Out<Datatype>) -> Outcome<()> {
    let handle = datatype.get()?;
    let object = get(handle)?;
    if object.contents.is_permanent() {
        return Err(fail(c::ERR_TYPE, "a predefined datatype cannot be freed"));
    }
    if object.uses.is_freed() {
        return Err(bad_type(handle));
    }
    attributes::delete_all(&object.attributes, handle.0)?;
    if object.uses.free().ok_or_else(|| bad_type(handle))? {
        TYPES.remove(handle.0);
    }
    datatype.set(c::DATATYPE_NULL)
}

pub(crate) fn type_size(_wide: bool, datatype: Datatype, size: OutInts) -> Outcome<()> {
    size.set(get(datatype)?.size() as i64)
}

pub(crate) fn type_size_x(datatype: Datatype, size: Out<i64>) -> Outcome<()> {
    size.set(get(datatype)?.size() as i64)
}

pub(crate) fn type_get_extent(
    _wide: bool,
    datatype: Datatype,
    lb: Out<i64>,
    extent: Out<i64>,
) -> Outcome<()> {
    let shape = &get(datatype)?.shape;
    lb.set(shape.lb)?;
    extent.set(shape.extent())
}

pub(crate) fn type_get_extent_x(datatype: Datatype, lb: Out<i64>, extent: Out<i64>) -> Outcome<()> {
    type_get_extent(true, datatype, lb, extent)
}

pub(crate) fn type_get_true_extent(
    _wide: bool,
    datatype: Datatype,
    lb: Out<i64>,
    extent: Out<i64>,
) -> Outcome<()> {
    let shape = &get(datatype)?.shape;
    lb.set(shape.true_lb)?;
    extent.set(shape.true_extent())
}

pub(crate) fn type_get_true_extent_x(
    datatype: Datatype,
    lb: Out<i64>,
    extent: Out<i64>,
) -> Outcome<()> {
    type_get_true_extent(true, datatype, lb, extent)
}

pub(crate) fn type_get_name(datatype: Datatype, name: OutText, len: Out<i32>) -> Outcome<()> {
    // A predefined null handle has a name all the same.
    let text = if datatype == c::DATATYPE_NULL {
        b"MPI_DATATYPE_NULL".to_vec()
    } else {
        phase::lock(&get(datatype)?.name).clone()
    };
    len.set(name.set(&text, c::MAX_OBJECT_NAME as usize)? as i32)
}

pub(crate) fn type_set_name(datatype: Datatype, name: Text) -> Outcome<()> {
    let mut text = name.get()?;
    text.truncate(c::MAX_OBJECT_NAME as usize - 1);
    *phase::lock(&get(datatype)?.name) = text;
    Ok(())
}

pub(crate) fn type_get_value_index(
    value: Datatype,
    index: Datatype,
    pair: Out<Datatype>,
) -> Outcome<()> {
    let element = |handle| get(handle).map(|object| object.named());
    let (value, index) = (element(value)?, element(index)?);
    let found = predefined::all().find(|pair| match (pair.second(), value, index) {
        (Some((a, b, _)), Some(value), Some(index)) => {
            let same_name = pair.name() != "MPI_2REAL"
                && pair.name() != "MPI_2DOUBLE_PRECISION"
                && pair.name() != "MPI_2INTEGER";
            same_name && a == value.kind() && b == index.kind()
        }
        _ => false,
    });
    pair.set(found.map_or(c::DATATYPE_NULL, |element| Datatype(element.handle())))
}

pub(crate) fn type_match_size(class: i32, size: i32, datatype: Out<Datatype>) -> Outcome<()> {
    let bytes = u8::try_from(size).unwrap_or(0);
    let wanted = match class {
        c::TYPECLASS_INTEGER => Kind::Int(bytes),
        c::TYPECLASS_REAL => Kind::Float(bytes),
        c::TYPECLASS_COMPLEX => Kind::Complex(bytes / 2),
        _ => return Err(fail(c::ERR_ARG, format!("{class} is no class of types"))),
    };
    // The types that are named by their size.
    let found = predefined::all()
        .find(|element| element.handle() & 0x3c0 == 0x2c0 && element.kind() == wanted);
    match found {
        Some(element) => datatype.set(Datatype(element.handle())),
        None => Err(fail(
            c::ERR_ARG,
            format!("there is no type of this class with {size} bytes"),
        )),
    }
}
