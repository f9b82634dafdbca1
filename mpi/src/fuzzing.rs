// SPDX-License-Identifier: MIT OR Apache-2.0
//! A door for `tests/fuzz` to the datatype engine. Not part of the API.

use crate::datatype::predefined;
use crate::datatype::shape::Shape;
use crate::memory::{address_of_shared, gather, scatter};

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

/// Builds datatypes by random constructors from the numbers that `next` gives, and compares what
/// packing and unpacking them does with the spelled-out form.
pub fn datatypes(mut next: impl FnMut() -> Option<u64>) {
    let mut stack: Vec<Model> = Vec::new();
    while let Some(step) = next() {
        let mut small = |limit: u64| next().unwrap_or(0) % limit;
        let top = stack.last();
        let made = match (step % 8, top) {
            (0, _) | (_, None) => Some(element(small(256))),
            (1, Some(top)) => {
                let count = small(9);
                repeated(top, count, top.shape.extent())
            }
            (2, Some(top)) => {
                let (count, stride) = (small(9), small(256) as i64 - 128);
                repeated(top, count, stride)
            }
            (3, Some(top)) => {
                // A vector of blocks.
                let (count, block, stride) = (small(5), small(5), small(64) as i64 - 32);
                let distance = stride * top.shape.extent().clamp(-256, 256);
                repeated(top, block, top.shape.extent())
                    .and_then(|inner| repeated(&inner, count, distance))
            }
            (4, Some(_)) => {
                // A struct of the last few.
                let take = small(4) as usize + 1;
                let from = stack.len().saturating_sub(take);
                let places: Vec<i64> = (from..stack.len())
                    .map(|_| small(512) as i64 - 128)
                    .collect();
                let parts: Vec<_> = stack[from..]
                    .iter()
                    .zip(&places)
                    .map(|(model, &offset)| (i128::from(offset), model.shape.clone()))
                    .collect();
                let bytes = stack[from..].iter().zip(&places);
                let shape = Shape::list(&parts).and_then(Shape::padded);
                shape.ok().map(|shape| Model {
                    bytes: bytes
                        .flat_map(|(model, &offset)| moved(&model.bytes, offset))
                        .collect(),
                    shape,
                })
            }
            (5, Some(top)) => {
                let (lb, extent) = (small(128) as i64 - 64, i128::from(small(256)) - 64);
                let shape = top.shape.resized(lb, extent);
                shape.ok().map(|shape| Model {
                    shape,
                    bytes: top.bytes.clone(),
                })
            }
            (6, Some(top)) => {
                let by = small(256) as i64 - 128;
                let shape = top.shape.shifted(i128::from(by));
                shape.ok().map(|shape| Model {
                    shape,
                    bytes: moved(&top.bytes, by).collect(),
                })
            }
            (_, Some(top)) => {
                check(top, small(4), small(1 << 13), small(1 << 13));
                continue;
            }
        };
        let Some(made) = made else { continue };
        if made.bytes.len() > MOST || made.bytes.iter().any(|byte| byte.unsigned_abs() > 1 << 24) {
            continue;
        }
        assert_eq!(made.shape.size(), made.bytes.len() as u64);
        if let (Some(low), Some(high)) = (made.bytes.iter().min(), made.bytes.iter().max()) {
            assert!(made.shape.true_lb <= *low && *high < made.shape.true_ub);
        }
        stack.push(made);
    }
    if let Some(top) = stack.last() {
        check(top, 2, 1, 1 << 13);
    }
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
    gather(&layout, base, from..to, &mut packed);
    let expected: Vec<u8> = wanted.iter().map(|&byte| program[place(byte)]).collect();
    assert_eq!(packed, expected);
    let mut back = vec![0u8; program.len()];
    let base = crate::memory::address_of(&mut back).offset(-low);
    scatter(&layout, base, from, &packed);
    let mut expected = vec![0u8; program.len()];
    for (&byte, &value) in wanted.iter().zip(&packed) {
        expected[place(byte)] = value;
    }
    assert_eq!(back, expected);
}
