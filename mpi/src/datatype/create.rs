// SPDX-License-Identifier: MIT OR Apache-2.0
//! The constructors.
#![expect(clippy::too_many_arguments, reason = "signatures of the standard")]

use super::contents::Contents;
use super::shape::{OutOfRange, Shape};
use super::{TypeObject, get, keep};
use crate::failure::{Outcome, fail};
use crate::ffi::{Datatype, In, Ints, Out};
use crate::topology::coordinates;
use crate::{attributes, c};
use std::sync::Arc;

fn finish(shape: Shape, contents: Contents, new: Out<Datatype>) -> Outcome<()> {
    new.set(keep(Arc::new(TypeObject::new(shape, contents)))?)
}

fn count_of(value: i64, what: &str) -> Outcome<u64> {
    u64::try_from(value).map_err(|_| fail(c::ERR_COUNT, format!("{what} is {value}")))
}

pub(crate) fn type_contiguous(
    wide: bool,
    count: i64,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let shape = base.shape.contiguous(count_of(count, "the count")?)?;
    let contents = Contents::made(c::COMBINER_CONTIGUOUS, wide, vec![Arc::clone(base)]);
    finish(shape, contents.counts(&[count]), new)
}

/// `count` blocks at distances of `stride` bytes.
fn strided(base: &Shape, count: i64, block: i64, stride: i128) -> Outcome<Shape> {
    let (count, block) = (
        count_of(count, "the count")?,
        count_of(block, "the block length")?,
    );
    Ok(base.contiguous(block)?.repeated(count, stride)?)
}

pub(crate) fn type_vector(
    wide: bool,
    count: i64,
    block: i64,
    stride: i64,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let distance = i128::from(stride) * i128::from(base.shape.extent());
    let shape = strided(&base.shape, count, block, distance)?;
    let contents = Contents::made(c::COMBINER_VECTOR, wide, vec![Arc::clone(base)]);
    finish(shape, contents.counts(&[count, block, stride]), new)
}

pub(crate) fn type_create_hvector(
    wide: bool,
    count: i64,
    block: i64,
    stride: i64,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let shape = strided(&base.shape, count, block, i128::from(stride))?;
    let contents = Contents::made(c::COMBINER_HVECTOR, wide, vec![Arc::clone(base)]);
    let contents = contents.counts(&[count, block]).addresses(&[stride]);
    finish(shape, contents, new)
}

/// Blocks at displacements in units of so many bytes. A block of no elements is none.
fn blocks(base: &Shape, lengths: &[i64], displacements: &[i64], unit: i64) -> Outcome<Shape> {
    let mut parts = Vec::with_capacity(lengths.len());
    for (&length, &displacement) in lengths.iter().zip(displacements) {
        let length = count_of(length, "a block length")?;
        if length > 0 {
            let place = i128::from(displacement) * i128::from(unit);
            parts.push((place, base.contiguous(length)?));
        }
    }
    Ok(Shape::list(&parts)?)
}

pub(crate) fn type_indexed(
    wide: bool,
    count: i64,
    lengths: Ints,
    displacements: Ints,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let n = count_of(count, "the count")? as usize;
    let (lengths, displacements) = (lengths.list(n)?, displacements.list(n)?);
    let shape = blocks(&base.shape, &lengths, &displacements, base.shape.extent())?;
    let contents = Contents::made(c::COMBINER_INDEXED, wide, vec![Arc::clone(base)]);
    let contents = contents
        .counts(&[count])
        .counts(&lengths)
        .counts(&displacements);
    finish(shape, contents, new)
}

pub(crate) fn type_create_hindexed(
    wide: bool,
    count: i64,
    lengths: Ints,
    displacements: In<i64>,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let n = count_of(count, "the count")? as usize;
    let (lengths, displacements) = (lengths.list(n)?, displacements.list(n)?);
    let shape = blocks(&base.shape, &lengths, &displacements, 1)?;
    let contents = Contents::made(c::COMBINER_HINDEXED, wide, vec![Arc::clone(base)]);
    let contents = contents
        .counts(&[count])
        .counts(&lengths)
        .addresses(&displacements);
    finish(shape, contents, new)
}

pub(crate) fn type_create_indexed_block(
    wide: bool,
    count: i64,
    block: i64,
    displacements: Ints,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let n = count_of(count, "the count")? as usize;
    let displacements = displacements.list(n)?;
    let unit = base.shape.extent();
    let shape = blocks(&base.shape, &vec![block; n], &displacements, unit)?;
    let contents = Contents::made(c::COMBINER_INDEXED_BLOCK, wide, vec![Arc::clone(base)]);
    let contents = contents.counts(&[count, block]).counts(&displacements);
    finish(shape, contents, new)
}

pub(crate) fn type_create_hindexed_block(
    wide: bool,
    count: i64,
    block: i64,
    displacements: In<i64>,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let n = count_of(count, "the count")? as usize;
    let displacements = displacements.list(n)?;
    let shape = blocks(&base.shape, &vec![block; n], &displacements, 1)?;
    let contents = Contents::made(c::COMBINER_HINDEXED_BLOCK, wide, vec![Arc::clone(base)]);
    let contents = contents.counts(&[count, block]).addresses(&displacements);
    finish(shape, contents, new)
}

pub(crate) fn type_create_struct(
    wide: bool,
    count: i64,
    lengths: Ints,
    displacements: In<i64>,
    types: In<Datatype>,
    new: Out<Datatype>,
) -> Outcome<()> {
    let n = count_of(count, "the count")? as usize;
    let (lengths, displacements) = (lengths.list(n)?, displacements.list(n)?);
    let types = types.list(n)?;
    let mut objects = Vec::with_capacity(n);
    let mut parts = Vec::with_capacity(n);
    for ((&length, &displacement), &handle) in lengths.iter().zip(&displacements).zip(&types) {
        let base = get(handle)?;
        objects.push(Arc::clone(base));
        let length = count_of(length, "a block length")?;
        if length > 0 {
            parts.push((i128::from(displacement), base.shape.contiguous(length)?));
        }
    }
    let shape = Shape::list(&parts)?.padded()?;
    let contents = Contents::made(c::COMBINER_STRUCT, wide, objects);
    let contents = contents
        .counts(&[count])
        .counts(&lengths)
        .addresses(&displacements);
    finish(shape, contents, new)
}

pub(crate) fn type_create_resized(
    wide: bool,
    old: Datatype,
    lb: i64,
    extent: i64,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let contents = Contents::made(c::COMBINER_RESIZED, wide, vec![Arc::clone(base)]);
    finish(
        base.shape.resized(lb, i128::from(extent))?,
        contents.addresses(&[lb, extent]),
        new,
    )
}

pub(crate) fn type_dup(old: Datatype, new: Out<Datatype>) -> Outcome<()> {
    let base = get(old)?;
    let mut copy = base.twin();
    copy.contents = Contents::made(c::COMBINER_DUP, false, vec![Arc::clone(base)]);
    match attributes::copy_all(&base.attributes, old.0) {
        Ok(attributes) => *crate::phase::lock(&copy.attributes) = attributes,
        Err(failure) => {
            new.set_unless_null(c::DATATYPE_NULL);
            return Err(failure);
        }
    }
    new.set(keep(Arc::new(copy))?)
}

fn dimensions(ndims: i32) -> Outcome<usize> {
    usize::try_from(ndims)
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| fail(c::ERR_ARG, format!("{ndims} dimensions")))
}

/// The product of two distances in bytes, or of one and a number of elements.
fn product(a: i128, b: i64) -> Outcome<i128> {
    Ok(a.checked_mul(i128::from(b)).ok_or(OutOfRange)?)
}

/// The dimensions from the fastest to the slowest.
fn from_fastest(order: i32, n: usize) -> Outcome<Vec<usize>> {
    match order {
        c::ORDER_C => Ok((0..n).rev().collect()),
        c::ORDER_FORTRAN => Ok((0..n).collect()),
        _ => Err(fail(c::ERR_ARG, format!("{order} is no order of arrays"))),
    }
}

pub(crate) fn type_create_subarray(
    wide: bool,
    ndims: i32,
    sizes: Ints,
    subsizes: Ints,
    starts: Ints,
    order: i32,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let n = dimensions(ndims)?;
    let (sizes, subsizes, starts) = (sizes.list(n)?, subsizes.list(n)?, starts.list(n)?);
    for ((&size, &part), &start) in sizes.iter().zip(&subsizes).zip(&starts) {
        if size < 1 || part < 1 || part > size || start < 0 || start > size - part {
            return Err(fail(
                c::ERR_ARG,
                format!("{part} elements from {start} on do not lie in a dimension of {size}"),
            ));
        }
    }
    let mut shape = base.shape.clone();
    let (mut stride, mut offset) = (i128::from(base.shape.extent()), 0i128);
    for dimension in from_fastest(order, n)? {
        shape = shape.repeated(subsizes[dimension] as u64, stride)?;
        let first = product(stride, starts[dimension])?;
        offset = offset.checked_add(first).ok_or(OutOfRange)?;
        stride = product(stride, sizes[dimension])?;
    }
    let shape = shape.shifted(offset)?.resized(base.shape.lb, stride)?;
    let contents = Contents::made(c::COMBINER_SUBARRAY, wide, vec![Arc::clone(base)]);
    let contents = contents
        .ints(&[ndims])
        .counts(&sizes)
        .counts(&subsizes)
        .counts(&starts)
        .ints(&[order]);
    finish(shape, contents, new)
}

/// What one process has of one dimension of a distributed array.
struct DimensionShare {
    size: i64,
    distribution: i32,
    argument: i32,
    processes: i64,
    coordinate: i64,
}

impl DimensionShare {
    /// The elements that are this process's, at distances of `stride` bytes, and where the first one is.
    fn shape(&self, base: &Shape, stride: i128) -> Outcome<(Shape, i128)> {
        let bad = || fail(c::ERR_ARG, "a distribution that does not fit its dimension");
        let default = self.argument == c::DISTRIBUTE_DFLT_DARG;
        let (block, cyclic) = match self.distribution {
            c::DISTRIBUTE_NONE if self.processes == 1 => (self.size, false),
            c::DISTRIBUTE_BLOCK if default => ((self.size - 1) / self.processes + 1, false),
            c::DISTRIBUTE_BLOCK => {
                let block = i64::from(self.argument);
                if block < 1 || block.saturating_mul(self.processes) < self.size {
                    return Err(bad());
                }
                (block, false)
            }
            c::DISTRIBUTE_CYCLIC if default => (1, true),
            c::DISTRIBUTE_CYCLIC if self.argument > 0 => (i64::from(self.argument), true),
            _ => return Err(bad()),
        };
        // The first element of this process; in the last places of the grid it can be behind the end.
        let first = self.coordinate.checked_mul(block).unwrap_or(self.size);
        if first >= self.size {
            return Ok((Shape::empty(), 0));
        }
        let rest = self.size - first;
        let offset = product(stride, first)?;
        if !cyclic {
            return Ok((base.repeated(rest.min(block) as u64, stride)?, offset));
        }
        let round = self.processes * block;
        let (full, rest) = (rest / round, (rest % round).min(block));
        let turn = product(stride, round)?;
        let mut parts = Vec::new();
        if full > 0 {
            let piece = base.repeated(block as u64, stride)?;
            parts.push((0, piece.repeated(full as u64, turn)?));
        }
        if rest > 0 {
            let place = product(turn, full)?;
            parts.push((place, base.repeated(rest as u64, stride)?));
        }
        Ok((Shape::list(&parts)?, offset))
    }
}

pub(crate) fn type_create_darray(
    wide: bool,
    size: i32,
    rank: i32,
    ndims: i32,
    gsizes: Ints,
    distributions: In<i32>,
    arguments: In<i32>,
    psizes: In<i32>,
    order: i32,
    old: Datatype,
    new: Out<Datatype>,
) -> Outcome<()> {
    let base = get(old)?;
    let n = dimensions(ndims)?;
    let sizes = gsizes.list(n)?;
    let (distributions, arguments) = (distributions.list(n)?, arguments.list(n)?);
    let processes = psizes.list(n)?;
    let places = processes.iter().try_fold(1i64, |all, &one| {
        (one > 0).then(|| all.saturating_mul(i64::from(one)))
    });
    if places != Some(i64::from(size)) || rank < 0 || rank >= size {
        return Err(fail(
            c::ERR_ARG,
            format!("rank {rank} of {size} processes in the grid {processes:?}"),
        ));
    }
    if sizes.iter().any(|&size| size < 1) {
        return Err(fail(c::ERR_ARG, "a dimension of the array is not positive"));
    }
    // In row-major order, whatever the array's order is.
    let coordinates = coordinates(i64::from(rank), &processes);
    let mut shape = base.shape.clone();
    let (mut stride, mut offset) = (i128::from(base.shape.extent()), 0i128);
    for dimension in from_fastest(order, n)? {
        let share = DimensionShare {
            size: sizes[dimension],
            distribution: distributions[dimension],
            argument: arguments[dimension],
            processes: i64::from(processes[dimension]),
            coordinate: i64::from(coordinates[dimension]),
        };
        let (part, first) = share.shape(&shape, stride)?;
        shape = part;
        offset = offset.checked_add(first).ok_or(OutOfRange)?;
        stride = product(stride, sizes[dimension])?;
    }
    let shape = shape.shifted(offset)?.resized(base.shape.lb, stride)?;
    let contents = Contents::made(c::COMBINER_DARRAY, wide, vec![Arc::clone(base)]);
    let contents = contents
        .ints(&[size, rank, ndims])
        .counts(&sizes)
        .ints(&distributions)
        .ints(&arguments)
        .ints(&processes)
        .ints(&[order]);
    finish(shape, contents, new)
}
