// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a transfer costs: a line per layer and operation, from which thresholds are computed.

use onecopy_obs::Knobs;

/// One-way time of a message: `setup + bytes × per_byte`, in two pieces, because caches make large transfers dearer per byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curve {
    /// Nanoseconds of a message without payload.
    pub setup_ns: f64,
    /// Nanoseconds per KiB up to [`Self::knee`].
    pub per_kib_ns: f64,
    /// Bytes from where the second slope counts.
    pub knee: u64,
    /// Nanoseconds per KiB beyond.
    pub per_kib_far_ns: f64,
}

impl Curve {
    /// Estimated nanoseconds for `bytes`.
    #[must_use]
    pub fn estimate(&self, bytes: u64) -> f64 {
        let near = bytes.min(self.knee) as f64 / 1024.0 * self.per_kib_ns;
        let far = bytes.saturating_sub(self.knee) as f64 / 1024.0 * self.per_kib_far_ns;
        self.setup_ns + near + far
    }
}

/// The curves that selection is computed from. The seeds are two machines'; `onecopy tune` measures this one's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Eager through slots and chunks.
    pub eager: Curve,
    /// Rendezvous through recycled chunks.
    pub pipeline: Curve,
    /// The receiver loads from the peer's heap.
    pub map: Curve,
    /// Both sides copy by load and store.
    pub map_coop: Curve,
    /// The receiver loads from the peer's attached memory.
    pub attach: Curve,
    /// Both sides copy between attached memory.
    pub attach_coop: Curve,
    /// The receiver reads by the kernel.
    pub get: Curve,
    /// Both sides copy by the kernel.
    pub get_coop: Curve,
    /// The receiver reads by the kernel module.
    pub module: Curve,
    /// Both sides copy by the kernel module.
    pub module_coop: Curve,
}

const fn curve(setup_ns: f64, per_kib_ns: f64, knee_kib: u64, per_kib_far_ns: f64) -> Curve {
    Curve {
        setup_ns,
        per_kib_ns,
        knee: knee_kib * 1024,
        per_kib_far_ns,
    }
}

impl Default for Costs {
    /// One machine's seeds: Sapphire Rapids, both processors behind one third-level cache.
    fn default() -> Self {
        Self {
            eager: curve(90.0, 140.0, 256, 95.0),
            pipeline: curve(1300.0, 72.0, 512, 130.0),
            map: curve(330.0, 20.0, 256, 33.0),
            map_coop: curve(560.0, 16.0, 1024, 20.0),
            // As heap memory once attached, plus the lookup and the looks at the count of holes, or the guard.
            attach: curve(880.0, 20.0, 256, 33.0),
            attach_coop: curve(1280.0, 16.0, 1024, 20.0),
            get: curve(1700.0, 45.0, 1024, 100.0),
            get_coop: curve(2100.0, 30.0, 1024, 62.0),
            // The same copy, and a region to make and to end where the interface wants one.
            module: curve(2900.0, 45.0, 1024, 100.0),
            module_coop: curve(3300.0, 30.0, 1024, 62.0),
        }
    }
}

impl Costs {
    /// The seeds for a rank with these knobs on this machine: how it writes chunks tells which of the two is the nearer one.
    #[must_use]
    pub fn seeds(knobs: &Knobs) -> Self {
        if knobs.writes_strings() {
            Self::of_strings()
        } else {
            Self::default()
        }
    }

    /// Seeds of Zen 5, between those of two processors that share a third-level cache and of two that do not: copies into chunks are cheap, calls of the
    /// kernel are dear.
    fn of_strings() -> Self {
        let dearer = |of: Curve, by_ns: f64| Curve {
            setup_ns: of.setup_ns + by_ns,
            ..of
        };
        let (map, map_coop) = (curve(450.0, 9.0, 256, 30.0), curve(800.0, 7.0, 2048, 20.0));
        let (get, get_coop) = (
            curve(2200.0, 60.0, 1024, 110.0),
            curve(2000.0, 35.0, 512, 65.0),
        );
        Self {
            eager: curve(250.0, 100.0, 4, 30.0),
            pipeline: curve(1400.0, 31.0, 4096, 50.0),
            map,
            map_coop,
            attach: dearer(map, 550.0),
            attach_coop: dearer(map_coop, 720.0),
            get,
            get_coop,
            module: dearer(get, 1200.0),
            module_coop: dearer(get_coop, 1200.0),
        }
    }

    /// The smallest size, doubling from `from`, at which `a` is cheaper than `b`; `None` if nowhere up to 1 GiB.
    #[must_use]
    pub fn crossing(a: &Curve, b: &Curve, from: u64) -> Option<u64> {
        std::iter::successors(Some(from.max(1)), |size| size.checked_mul(2))
            .take_while(|&size| size <= 1 << 30)
            .find(|&size| a.estimate(size) < b.estimate(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_cross_where_the_slower_start_pays() {
        let flat = curve(1000.0, 10.0, 1024, 10.0);
        let steep = curve(100.0, 100.0, 1024, 100.0);
        assert_eq!(Costs::crossing(&flat, &steep, 1), Some(16384));
        assert_eq!(Costs::crossing(&steep, &flat, 1 << 20), None);
    }
}
