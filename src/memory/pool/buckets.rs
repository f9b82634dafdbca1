// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sizes that buffers come in.

use onecopy_shm::layout::PAGE;

/// Bucket sizes in ascending order: page multiples, two to a doubling, so that less than a third of a buffer of several
/// pages is wasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets(Vec<usize>);

impl Buckets {
    /// Buckets from `min` to `max` bytes, both rounded up to pages and both among the buckets.
    #[must_use]
    pub fn new(min: usize, max: usize) -> Self {
        let pages = |bytes: usize| bytes.max(1).div_ceil(PAGE);
        let (min, max) = (pages(min), pages(max.max(min)));
        let mut sizes = vec![min];
        let mut power = 1usize;
        while power < max {
            // Of one page there is no half to add.
            let half = power + power / 2;
            sizes.extend([power, half].into_iter().filter(|&s| min < s && s < max));
            let Some(next) = power.checked_mul(2) else {
                break;
            };
            power = next;
        }
        sizes.push(max);
        sizes.sort_unstable();
        sizes.dedup();
        Self(sizes.into_iter().map(|pages| pages * PAGE).collect())
    }

    /// The smallest bucket that holds `bytes`; none holds more than the largest.
    #[inline]
    #[must_use]
    pub fn index(&self, bytes: usize) -> Option<usize> {
        let index = self.0.partition_point(|&size| size < bytes);
        (index < self.0.len()).then_some(index)
    }

    /// Bytes of the buffers in a bucket.
    ///
    /// # Panics
    /// If there is no such bucket.
    #[inline]
    #[must_use]
    pub fn size(&self, bucket: usize) -> usize {
        self.0[bucket]
    }

    /// All sizes, ascending.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_to_a_doubling() {
        let kib: Vec<usize> = Buckets::new(4096, 64 << 10)
            .sizes()
            .iter()
            .map(|s| s >> 10)
            .collect();
        assert_eq!(kib, [4, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!(Buckets::new(8192, 8192).sizes(), [8192]);
    }

    proptest! {
        #[test]
        fn every_size_is_held_by_the_smallest_that_can(min in 1usize..300_000, span in 0usize..9_000_000, bytes in 0usize..10_000_000) {
            let buckets = Buckets::new(min, min + span);
            prop_assert!(buckets.sizes().iter().all(|s| s.is_multiple_of(PAGE)));
            prop_assert!(buckets.sizes().is_sorted_by(|a, b| a < b));
            prop_assert!(buckets.sizes()[0] >= min && *buckets.sizes().last().unwrap() >= min + span);
            match buckets.index(bytes) {
                Some(bucket) => {
                    prop_assert!(buckets.size(bucket) >= bytes);
                    prop_assert!(bucket == 0 || buckets.size(bucket - 1) < bytes);
                }
                None => prop_assert!(bytes > *buckets.sizes().last().unwrap()),
            }
        }
    }
}
