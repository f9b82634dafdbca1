// SPDX-License-Identifier: MIT OR Apache-2.0
//! Some of the layers, and one value for each.

use super::{COUNT, LayerId, Power};
use onecopy_obs::LayerList;
use std::ops::{Index, IndexMut};

/// One value for each layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerLayer<T>([T; COUNT]);

impl<T> PerLayer<T> {
    /// What `of` says of each.
    pub fn new(value: impl FnMut(LayerId) -> T) -> Self {
        Self(LayerId::ALL.map(value))
    }
}

impl<T> Index<LayerId> for PerLayer<T> {
    type Output = T;
    #[inline]
    fn index(&self, layer: LayerId) -> &T {
        &self.0[layer as usize]
    }
}

impl<T> IndexMut<LayerId> for PerLayer<T> {
    #[inline]
    fn index_mut(&mut self, layer: LayerId) -> &mut T {
        &mut self.0[layer as usize]
    }
}

/// Some of the layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerSet(u16);

const _: () = assert!(COUNT <= u16::BITS as usize, "a wider LayerSet");

impl LayerSet {
    /// All.
    pub const ALL: Self = Self(u16::MAX >> (u16::BITS as usize - COUNT));

    /// Whether the layer is among them.
    #[inline]
    #[must_use]
    pub const fn has(self, layer: LayerId) -> bool {
        self.0 >> layer as u8 & 1 != 0
    }

    /// These, and this one.
    #[inline]
    #[must_use]
    pub const fn with(self, layer: LayerId) -> Self {
        Self(self.0 | 1 << layer as u8)
    }

    /// These, but not this one.
    #[inline]
    #[must_use]
    pub const fn without(self, layer: LayerId) -> Self {
        Self(self.0 & !(1 << layer as u8))
    }

    /// What the user permits.
    #[must_use]
    pub fn permitted(list: &LayerList) -> Self {
        let layers = LayerId::ALL.into_iter();
        layers.filter(|layer| list.allows(layer.name())).collect()
    }

    /// Those among them that have this power, in the order in which they are tried.
    pub fn by(self, power: Power) -> impl Iterator<Item = LayerId> {
        LayerId::ALL
            .into_iter()
            .filter(move |&layer| layer.power() == power && self.has(layer))
    }
}

impl FromIterator<LayerId> for LayerSet {
    fn from_iter<I: IntoIterator<Item = LayerId>>(layers: I) -> Self {
        layers.into_iter().fold(Self::default(), Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_what_was_put_in() {
        let set: LayerSet = [LayerId::MAP, LayerId::CALL].into_iter().collect();
        assert!(set.has(LayerId::MAP) && !set.has(LayerId::OWN));
        assert!(!set.without(LayerId::MAP).has(LayerId::MAP));
        assert!(set.by(Power::Copy).eq([LayerId::CALL]));
        let all: LayerSet = LayerId::ALL.into_iter().collect();
        assert_eq!(all, LayerSet::ALL);
        let list = LayerList::Except(vec![LayerId::CALL.name()]);
        assert_eq!(LayerSet::permitted(&list), all.without(LayerId::CALL));
    }
}
