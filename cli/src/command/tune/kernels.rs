// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which copy kernel is the fastest from which size on.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use super::super::text;
use onecopy_shm::copy::{Kernel, copy_slices};

/// Times that progress is reported.
pub(super) const STEPS: u64 = SIZES.len() as u64;

const SIZES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// By how much a kernel must be faster than `memcpy` to take its place. As for the stores of chunks
/// (`src/runtime/measure.rs`).
const CLEARLY: f64 = 1.05;

/// What was measured.
pub(super) struct Kernels {
    /// Size, and GB/s of `memcpy`, non-temporal stores and `rep movsb`.
    lines: Vec<(usize, [f64; 3])>,
}

/// GB/s of the best of several copies.
fn rate(kernel: Kernel, to: &mut [u8], from: &[u8], quick: bool) -> f64 {
    let copies = ((256 << 20) / from.len()).clamp(4, 64) / if quick { 4 } else { 1 };
    let mut best = f64::INFINITY;
    for _ in 0..copies.max(2) {
        let start = Instant::now();
        copy_slices(kernel, to, from);
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    from.len() as f64 / best
}

/// Compares the kernels, each size and kernel in turn.
pub(super) fn calibrate(quick: bool, step: impl Fn()) -> Kernels {
    let most = SIZES[SIZES.len() - 1];
    let (from, mut to) = (vec![1u8; most], vec![2u8; most]);
    let lines = SIZES
        .into_iter()
        .map(|size| {
            let rates = [Kernel::Memcpy, Kernel::NonTemporal, Kernel::RepMovsb]
                .map(|kernel| rate(kernel, &mut to[..size], &from[..size], quick));
            step();
            (size, rates)
        })
        .collect();
    Kernels { lines }
}

impl Kernels {
    /// The size from which on non-temporal stores are clearly faster; none if there is none.
    fn nt_min(&self) -> Option<usize> {
        self.lines
            .iter()
            .rev()
            .take_while(|(_, [memcpy, nt, _])| *nt > CLEARLY * *memcpy)
            .last()
            .map(|&(size, _)| size)
    }

    /// Whether `rep movsb` is clearly faster wherever non-temporal stores are not used.
    fn rep(&self) -> bool {
        let end = self.nt_min().unwrap_or(usize::MAX);
        let mut below = self
            .lines
            .iter()
            .filter(|&&(size, _)| size < end)
            .peekable();
        below.peek().is_some() && below.all(|(_, [memcpy, _, rep])| *rep > CLEARLY * *memcpy)
    }

    /// The knobs that follow.
    pub(super) fn knobs(&self) -> BTreeMap<String, String> {
        let never = 1usize << 40;
        let nt_min = onecopy_obs::values::show_size(self.nt_min().unwrap_or(never));
        let mut knobs = BTreeMap::from([("ONECOPY_NT_MIN".to_owned(), nt_min)]);
        if self.rep() {
            knobs.insert("ONECOPY_COPY_KERNEL".to_owned(), "rep".to_owned());
        }
        knobs
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "copies within one rank, GB/s: memcpy / non-temporal / rep movsb"
        )?;
        for (size, [memcpy, nt, rep]) in &self.lines {
            writeln!(
                f,
                "  {:>8}  {memcpy:5.1} / {nt:5.1} / {rep:5.1}",
                text::size(*size as u64)
            )?;
        }
        for (name, value) in self.knobs() {
            writeln!(f, "{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_chosen_where_it_is_clearly_faster() {
        let kernels = |nt: [f64; 3]| Kernels {
            lines: nt
                .into_iter()
                .enumerate()
                .map(|(index, nt)| (1 << (20 + index), [10.0, nt, 9.0]))
                .collect(),
        };
        assert_eq!(kernels([9.0, 11.0, 12.0]).nt_min(), Some(2 << 20));
        assert_eq!(kernels([12.0, 9.0, 12.0]).nt_min(), Some(4 << 20));
        assert_eq!(kernels([12.0, 12.0, 10.4]).nt_min(), None);
        assert_eq!(kernels([1.0; 3]).knobs()["ONECOPY_NT_MIN"], "1 TiB");
        assert!(!kernels([1.0; 3]).rep());
    }
}
