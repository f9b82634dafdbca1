// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histograms with four bins per power of two: a bin is as wide as a quarter of its values at most.

/// How many bins there are: values up to 2⁶⁴ − 1 have one.
pub const BINS: usize = 256;

/// Counts of values by bins. The programs of the kernel fill the same bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// None while nothing is counted: most rows of a hostile page would have empty ones.
    counts: Option<Box<[u64; BINS]>>,
}

/// The bin of a value.
#[must_use]
pub const fn bin(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let log = 63 - value.leading_zeros();
    let quarter = (value >> (log - 2)) & 3;
    (log as usize) * 4 + quarter as usize
}

/// The least value of a bin, and the first one beyond it; the last bin ends at `u64::MAX`.
///
/// Bins 4 to 7 are empty: values below 4 have a bin each.
#[must_use]
pub const fn range(bin: usize) -> (u64, u64) {
    if bin < 8 {
        return (bin as u64, bin as u64 + 1);
    }
    let log = bin / 4;
    let quarter = (bin % 4) as u64;
    let width = 1_u64 << (log - 2);
    let least = (4 + quarter) << (log - 2);
    (least, least.saturating_add(width))
}

impl Histogram {
    /// Of counts per bin.
    #[must_use]
    pub fn from_counts(counts: [u64; BINS]) -> Self {
        let some = counts.iter().any(|count| *count > 0);
        Self {
            counts: some.then(|| Box::new(counts)),
        }
    }

    /// Counts `times` values.
    pub fn add(&mut self, value: u64, times: u64) {
        if times > 0 {
            self.all()[bin(value)] += times;
        }
    }

    /// Adds all of another one.
    pub fn merge(&mut self, other: &Self) {
        if let Some(theirs) = &other.counts {
            for (mine, theirs) in self.all().iter_mut().zip(theirs.iter()) {
                *mine += theirs;
            }
        }
    }

    fn all(&mut self) -> &mut [u64; BINS] {
        self.counts.get_or_insert_with(|| Box::new([0; BINS]))
    }

    fn counted(&self) -> impl Iterator<Item = &u64> {
        self.counts.iter().flat_map(|counts| counts.iter())
    }

    /// How many values were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counted().sum()
    }

    /// The bins that are not empty: least value, first one beyond, count.
    pub fn bins(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counted()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bin, count)| {
                let (least, beyond) = range(bin);
                (least, beyond, *count)
            })
    }

    /// The value below which a `share` of the values lies, between 0 and 1; interpolated in its bin.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a percentile is no better than its bin"
    )]
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * total as f64;
        let mut before = 0.0;
        let mut last = None;
        for (least, beyond, count) in self.bins() {
            let within = count as f64;
            if before + within >= wanted {
                let part = ((wanted - before) / within).clamp(0.0, 1.0);
                return Some(least as f64 + part * (beyond - least) as f64);
            }
            before += within;
            last = Some(beyond as f64);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_lies_in_the_range_of_its_bin() {
        for shift in 0..64 {
            for low in [0, 1, 2, 3] {
                let value = (1_u64 << shift) + ((low << shift) >> 2);
                let (least, beyond) = range(bin(value));
                assert!(least <= value, "{value}");
                assert!(value < beyond || beyond == u64::MAX, "{value}");
            }
        }
        assert_eq!(bin(u64::MAX), BINS - 1);
    }

    #[test]
    fn a_percentile_lies_within_an_eighth() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), None);
        for value in 1..=10_000 {
            histogram.add(value, 1);
        }
        for (share, expected) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0)] {
            let found = histogram.percentile(share).expect("not empty");
            assert!((found / expected - 1.0).abs() < 0.125, "{share}: {found}");
        }
    }
}
