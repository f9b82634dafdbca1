// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a transfer costs: two lines per layer, from which thresholds are computed.

use crate::curve::curve;
pub use crate::curve::{Curve, LayerCosts};
use crate::registry::{LayerId, PerLayer};
use onecopy_obs::knobs::auto::{AskedCopies, CopyTimes};
use onecopy_obs::{Knobs, seeds};

/// The curves that selection is computed from. The seeds are two machines'; `onecopy tune` measures this one's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Eager through slots and chunks.
    pub eager: Curve,
    /// Rendezvous through recycled chunks.
    pub pipeline: Curve,
    /// Rendezvous by each layer.
    pub by: PerLayer<LayerCosts>,
}

impl Default for Costs {
    /// The seeds of a machine whose chunks are written by stores.
    fn default() -> Self {
        Self {
            eager: curve(90.0, 140.0, 256, 95.0),
            pipeline: curve(1300.0, 72.0, 512, 130.0),
            by: PerLayer::new(|layer| {
                layer
                    .row()
                    .seeds
                    .map_or(LayerCosts::NEVER, |seeds| seeds.stores)
            }),
        }
    }
}

impl Costs {
    /// The seeds for a rank with these knobs on this machine: how it writes chunks tells which of the two is the nearer
    /// one.
    #[must_use]
    pub fn seeds(knobs: &Knobs) -> Self {
        if !knobs.writes_strings() {
            return Self::default();
        }
        // Copies into chunks are cheap here.
        Self {
            eager: curve(250.0, 100.0, 4, 30.0),
            pipeline: curve(1400.0, 31.0, 4096, 50.0),
            by: PerLayer::new(|layer| {
                layer
                    .row()
                    .seeds
                    .map_or(LayerCosts::NEVER, |seeds| seeds.strings)
            }),
        }
    }

    /// The names of all curves, in the order in which they are measured.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let layers = LayerId::SINGLE.into_iter();
        let curves = layers.filter_map(|layer| layer.row().labels.as_ref());
        ["eager", "pipeline"]
            .into_iter()
            .chain(curves.flat_map(|labels| labels.curves))
    }

    /// The curve with this name.
    #[must_use]
    pub fn named(&mut self, name: &str) -> Option<&mut Curve> {
        match name {
            "eager" => return Some(&mut self.eager),
            "pipeline" => return Some(&mut self.pipeline),
            _ => {}
        }
        for layer in LayerId::SINGLE {
            let Some(labels) = &layer.row().labels else {
                continue;
            };
            let [one_sided, cooperative] = labels.curves;
            if name == one_sided {
                return Some(&mut self.by[layer].one_sided);
            }
            if name == cooperative {
                return Some(&mut self.by[layer].cooperative);
            }
        }
        None
    }

    /// What copies take by which it is decided whether owners are asked to copy.
    #[must_use]
    pub fn asked_copies(&self) -> AskedCopies {
        seeds::ASK_SIZES.map(|len| CopyTimes {
            chunks: self.eager.estimate(len),
            call: self.by[LayerId::CALL].one_sided.estimate(len),
        })
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
