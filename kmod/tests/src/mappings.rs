// SPDX-License-Identifier: MIT OR Apache-2.0
//! What /proc says of this process's mappings.

use std::fs;

use crate::mem::Area;
use crate::outcome::{At, Fault, Outcome};

/// How many mappings of segments this process has: attachments, and pages of counts.
pub(crate) fn of_segments() -> Outcome<usize> {
    let path = "/proc/self/maps";
    let text = fs::read_to_string(path).at(path)?;
    Ok(text
        .lines()
        .filter(|line| line.contains("[onecopy]"))
        .count())
}

/// KiB of anonymous memory that this process has in the mappings of an area. Pages of zeroes count nothing.
pub(crate) fn anonymous(area: &Area) -> Outcome<u64> {
    let path = "/proc/self/smaps";
    let text = fs::read_to_string(path).at(path)?;
    let (mut within, mut found, mut sum) = (false, 0, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let range = first.split_once('-').and_then(|(from, to)| {
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(from)?, number(to)?))
        });
        if let Some((from, to)) = range {
            within = from < area.end() && area.base() < to;
            found += usize::from(within);
        } else if within && first == "Anonymous:" {
            let kib: u64 = words.next().unwrap_or_default().parse().at(path)?;
            sum += kib;
        }
    }
    if found == 0 {
        return Err(Fault::Fail(format!("{path}: no such mapping")));
    }
    Ok(sum)
}
