// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time of a transfer by its size.

/// One-way time of a message: `setup + bytes × per_byte`, in two pieces, because caches make large transfers dearer per
/// byte.
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

/// The curve of what is never done.
const NEVER: Curve = Curve {
    setup_ns: f64::INFINITY,
    per_kib_ns: 0.0,
    knee: 0,
    per_kib_far_ns: 0.0,
};

/// What transfers by one layer cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerCosts {
    /// The receiver copies.
    pub one_sided: Curve,
    /// Both sides copy.
    pub cooperative: Curve,
}

impl LayerCosts {
    /// Of a layer that has no transfers of its own.
    pub const NEVER: Self = Self {
        one_sided: NEVER,
        cooperative: NEVER,
    };
}

/// What a layer costs, by two machines.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    /// Sapphire Rapids, both processors behind one third-level cache.
    pub stores: LayerCosts,
    /// Zen 5, between two processors that share a third-level cache and two that do not: calls of the kernel are dear.
    pub strings: LayerCosts,
}

impl Seeds {
    /// The same copies, but for so many nanoseconds more of each transfer.
    pub(crate) const fn plus(self, one_sided_ns: f64, cooperative_ns: f64) -> Self {
        const fn later(costs: LayerCosts, one_sided_ns: f64, cooperative_ns: f64) -> LayerCosts {
            let LayerCosts {
                mut one_sided,
                mut cooperative,
            } = costs;
            one_sided.setup_ns += one_sided_ns;
            cooperative.setup_ns += cooperative_ns;
            LayerCosts {
                one_sided,
                cooperative,
            }
        }
        Self {
            stores: later(self.stores, one_sided_ns, cooperative_ns),
            strings: later(self.strings, one_sided_ns, cooperative_ns),
        }
    }
}

/// What copies out of mapped memory cost: the heap's, kept on 11-22.
pub(crate) const MAPPED: Seeds = Seeds {
    stores: LayerCosts {
        one_sided: curve(330.0, 20.0, 256, 33.0),
        cooperative: curve(560.0, 16.0, 1024, 20.0),
    },
    strings: LayerCosts {
        one_sided: curve(450.0, 9.0, 256, 30.0),
        cooperative: curve(800.0, 7.0, 2048, 20.0),
    },
};

/// What copies by a call of the kernel cost: those of cross-memory attach, kept on 11-22.
pub(crate) const CALLED: Seeds = Seeds {
    stores: LayerCosts {
        one_sided: curve(1700.0, 45.0, 1024, 100.0),
        cooperative: curve(2100.0, 30.0, 1024, 62.0),
    },
    strings: LayerCosts {
        one_sided: curve(2200.0, 60.0, 1024, 110.0),
        cooperative: curve(2000.0, 35.0, 512, 65.0),
    },
};

/// A curve of `setup` nanoseconds and so many per KiB up to the knee, and beyond.
pub(crate) const fn curve(
    setup_ns: f64,
    per_kib_ns: f64,
    knee_kib: u64,
    per_kib_far_ns: f64,
) -> Curve {
    Curve {
        setup_ns,
        per_kib_ns,
        knee: knee_kib * 1024,
        per_kib_far_ns,
    }
}
