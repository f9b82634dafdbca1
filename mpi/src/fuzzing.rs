// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doors for `tests/fuzz` to the datatype engine, and to what peers offer of devices' memory. Not part of the API.

use crate::datatype::predefined;
use crate::datatype::shape::Shape;
use crate::memory::{address_of_shared, gather, scatter_in_host};
use onecopy_cuda::direct::Shown;

/// A datatype, and the same spelled out: the displacement of every byte, in the packed order.
struct Model {
    shape: Shape,
    bytes: Vec<i64>,
}

/// Bytes of a model at most, so that spelling it out stays cheap.
const MOST: usize = 4096;

fn element(number: u64) -> Model {
    let all: Vec<_> = predefined::all().collect();
    let shape = Shape::of(all[number as usize % all.len()]);
    let mut bytes = Vec::new();
    shape.layout.walk(0, 0..shape.size(), &mut |offset, len| {
        bytes.extend(offset..offset + len as i64);
        true
    });
    Model { shape, bytes }
}

fn moved(bytes: &[i64], by: i64) -> impl Iterator<Item = i64> {
    bytes.iter().map(move |byte| byte.wrapping_add(by))
}

/// `None`: 64 bits cannot hold it, as the extent of what has no bytes can be.
fn repeated(model: &Model, count: u64, stride: i64) -> Option<Model> {
    let turns = (0..count as i64).flat_map(|turn| moved(&model.bytes, turn.wrapping_mul(stride)));
    let shape = model.shape.repeated(count, i128::from(stride));
    Some(Model {
        bytes: turns.collect(),
        shape: shape.ok()?,
    })
}

/// A number of choices, to the number that was drawn among them.
type Draw<'d> = &'d mut dyn FnMut(u64) -> u64;

/// Builds datatypes by random constructors from the numbers that `next` gives, and compares what
/// packing and unpacking them does with the spelled-out form.
pub fn datatypes(mut next: impl FnMut() -> Option<u64>) {
    let mut stack: Vec<Model> = Vec::new();
    while let Some(step) = next() {
        let mut draw = |choices: u64| next().unwrap_or(0) % choices;
        match (step % 8, stack.last()) {
            (7, Some(top)) => check(top, draw(4), draw(1 << 13), draw(1 << 13)),
            (constructor, _) => {
                let made = construct(constructor, &stack, &mut draw);
                stack.extend(made.filter(is_small).inspect(check_bounds));
            }
        }
    }
    if let Some(top) = stack.last() {
        check(top, 2, 1, 1 << 13);
    }
}

/// Whether a model is cheap to go on with.
fn is_small(model: &Model) -> bool {
    let is_near = |byte: &i64| byte.unsigned_abs() <= 1 << 24;
    model.bytes.len() <= MOST && model.bytes.iter().all(is_near)
}

/// Compares what a datatype says of its size and its bounds.
fn check_bounds(model: &Model) {
    assert_eq!(model.shape.size(), model.bytes.len() as u64);
    if let (Some(low), Some(high)) = (model.bytes.iter().min(), model.bytes.iter().max()) {
        assert!(model.shape.true_lb <= *low && *high < model.shape.true_ub);
    }
}

/// Makes a datatype of those on top of the stack, or a predefined one where there are none. `None`: as [`repeated`].
fn construct(constructor: u64, stack: &[Model], draw: Draw<'_>) -> Option<Model> {
    let Some(top) = stack.last().filter(|_| constructor != 0) else {
        return Some(element(draw(256)));
    };
    match constructor {
        1 => repeated(top, draw(9), top.shape.extent()),
        2 => {
            let (count, stride) = (draw(9), draw(256) as i64 - 128);
            repeated(top, count, stride)
        }
        3 => {
            // A vector of blocks.
            let (count, block, stride) = (draw(5), draw(5), draw(64) as i64 - 32);
            let distance = stride * top.shape.extent().clamp(-256, 256);
            let inner = repeated(top, block, top.shape.extent())?;
            repeated(&inner, count, distance)
        }
        4 => {
            let take = draw(4) as usize + 1;
            structure(&stack[stack.len().saturating_sub(take)..], draw)
        }
        5 => {
            let (lb, extent) = (draw(128) as i64 - 64, i128::from(draw(256)) - 64);
            Some(Model {
                shape: top.shape.resized(lb, extent).ok()?,
                bytes: top.bytes.clone(),
            })
        }
        _ => {
            let by = draw(256) as i64 - 128;
            Some(Model {
                shape: top.shape.shifted(i128::from(by)).ok()?,
                bytes: moved(&top.bytes, by).collect(),
            })
        }
    }
}

/// A struct of `members`, at drawn displacements.
fn structure(members: &[Model], draw: Draw<'_>) -> Option<Model> {
    let offsets: Vec<i64> = members.iter().map(|_| draw(512) as i64 - 128).collect();
    let placed = || members.iter().zip(&offsets);
    let parts: Vec<_> = placed()
        .map(|(model, &offset)| (i128::from(offset), model.shape.clone()))
        .collect();
    Some(Model {
        shape: Shape::list(&parts).and_then(Shape::padded).ok()?,
        bytes: placed()
            .flat_map(|(model, &offset)| moved(&model.bytes, offset))
            .collect(),
    })
}

/// Packs and unpacks `count` instances, bytes `from` to `to` of them.
fn check(model: &Model, count: u64, from: u64, to: u64) {
    let Some(all) = repeated(model, count, model.shape.extent()) else {
        return;
    };
    if all.bytes.iter().any(|byte| byte.unsigned_abs() > 1 << 24) {
        return;
    }
    let layout = model.shape.layout_of(count).expect("what can be repeated");
    assert_eq!(layout.size(), all.bytes.len() as u64);
    let to = to.min(layout.size());
    let from = from.min(to);
    let wanted = &all.bytes[from as usize..to as usize];
    if let Some(begin) = model.shape.dense(count) {
        assert!(
            (begin..)
                .zip(&all.bytes)
                .all(|(dense, &byte)| dense == byte)
        );
    }
    let (Some(&low), Some(&high)) = (wanted.iter().min(), wanted.iter().max()) else {
        return;
    };
    // No byte more than the datatype names: the sanitizer sees an access beyond.
    let place = |byte: i64| (byte - low) as usize;
    let program: Vec<u8> = (0..=place(high))
        .map(|index| (index * 7 + index / 251) as u8)
        .collect();
    let base = address_of_shared(&program).offset(-low);
    let mut packed = vec![0; wanted.len()];
    assert!(gather(&layout, base, from..to, &mut packed).is_ok());
    let expected: Vec<u8> = wanted.iter().map(|&byte| program[place(byte)]).collect();
    assert_eq!(packed, expected);
    let mut back = vec![0u8; program.len()];
    let base = crate::memory::address_of(&mut back).offset(-low);
    scatter_in_host(&layout, base, from, &packed);
    let mut expected = vec![0u8; program.len()];
    for (&byte, &value) in wanted.iter().zip(&packed) {
        expected[place(byte)] = value;
    }
    assert_eq!(back, expected);
}

/// Reads what a peer offers of a device's memory, of which `len` bytes are wanted. What is taken for an offer has no
/// byte that means nothing, and holds what is shorter, too.
pub fn offer(bytes: &[u8], len: u64) -> bool {
    let Some(offer) = Shown::decode(bytes, len) else {
        return false;
    };
    assert_eq!(offer.encode(), bytes);
    assert_eq!(Shown::decode(bytes, len / 2), Some(offer));
    true
}
