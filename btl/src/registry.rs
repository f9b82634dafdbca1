// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers: one row each, in the order in which they are tried. Nothing else names them as a set; who needs one asks for what it can
//! do (docs/adding-a-layer.md).

use crate::contract::{AttachLayer, CopyLayer, Means, Refusal, Terms};
use crate::module::Module;
use crate::{cico, cma, heap, knem, xpmem};
use onecopy_obs::{LayerList, ModuleAbi};
use onecopy_shm::segment::PeerSegment;
use std::fmt;
use std::io;
use std::ops::{Index, IndexMut};

/// A layer's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LayerId {
    /// Within one process.
    Own,
    /// Memory that both share from the start.
    Heap,
    /// Memory of the peer, attached by a kernel module.
    Xpmem,
    /// Cross-memory attach.
    Cma,
    /// Copies by a kernel module.
    Knem,
    /// Copy in, copy out.
    Cico,
}

/// How a layer gets at the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// They never leave the process.
    Own,
    /// Both sides map the memory from the start: a copy is loads and stores, without a cost per message.
    Map,
    /// Maps the peer's memory after a message has earned that; then as [`Self::Map`].
    Attach,
    /// A call copies.
    Copy,
    /// Through chunks of the sender's segment: works wherever there is one.
    Chunks,
}

/// A row: what there is to know of a layer, apart from its code.
#[derive(Debug)]
pub struct Layer {
    /// Which one.
    pub id: LayerId,
    /// As users write it.
    pub name: &'static str,
    /// How it gets at the bytes.
    pub power: Power,
    /// Whether it can write to the peer, if the pair permits that.
    pub writes: bool,
    /// Whether the owner of a message may have to expose it first.
    pub exposes: bool,
    /// How it is proven when a pair connects.
    pub prove: Prove,
    /// What a failed call means: call, rank, error.
    pub explain: fn(&str, u32, &io::Error) -> Refusal,
}

/// Proves a layer by a transfer.
pub type ProvePair = fn(&PeerSegment, &Means, &Terms) -> Result<Proven, Refusal>;

/// How a layer is proven.
#[derive(Debug, Clone, Copy)]
pub enum Prove {
    /// There is no pair.
    Nothing,
    /// It is what a pair talks by: without it there is no pair. Whether the pool is mapped writable.
    Segment(fn(&mut PeerSegment, bool) -> Result<(), Refusal>),
    /// By a transfer.
    Pair(ProvePair),
}

/// A layer that is proven for a pair.
#[derive(Debug)]
pub enum Proven {
    /// It maps. By its type, so that the shortest path has no dispatch in it.
    Map(heap::HeapLayer),
    /// It attaches.
    Attach(Box<dyn AttachLayer>),
    /// A call copies.
    Copy(Box<dyn CopyLayer>),
}

/// All layers, in the order in which they are tried: when one fails, the next is used. First what costs no call per copy, then what pins and
/// registers nothing.
pub const LAYERS: &[Layer] = &[
    Layer {
        id: LayerId::Own,
        name: "self",
        power: Power::Own,
        writes: false,
        exposes: false,
        prove: Prove::Nothing,
        explain: plain,
    },
    Layer {
        id: LayerId::Heap,
        name: "heap",
        power: Power::Map,
        writes: true,
        exposes: false,
        prove: Prove::Pair(|peer, _, terms| {
            heap::HeapLayer::prove(peer, terms.plan).map(Proven::Map)
        }),
        explain: plain,
    },
    Layer {
        id: LayerId::Xpmem,
        name: "xpmem",
        power: Power::Attach,
        writes: true,
        exposes: false,
        prove: Prove::Pair(|peer, means, terms| {
            let layer = xpmem::XpmemLayer::prove(peer, means, terms)?;
            Ok(Proven::Attach(Box::new(layer)))
        }),
        explain: xpmem::explain,
    },
    Layer {
        id: LayerId::Cma,
        name: "cma",
        power: Power::Copy,
        writes: true,
        exposes: false,
        prove: Prove::Pair(|peer, means, _| {
            let layer = cma::CmaLayer::prove(peer, means.pid)?;
            Ok(Proven::Copy(Box::new(layer)))
        }),
        explain: cma::explain,
    },
    Layer {
        id: LayerId::Knem,
        name: "knem",
        power: Power::Copy,
        writes: true,
        exposes: true,
        prove: Prove::Pair(|peer, means, terms| {
            let layer = knem::KnemLayer::prove(peer, means, terms)?;
            Ok(Proven::Copy(Box::new(layer)))
        }),
        explain: knem::explain,
    },
    Layer {
        id: LayerId::Cico,
        name: "cico",
        power: Power::Chunks,
        writes: false,
        exposes: false,
        prove: Prove::Segment(cico::prove),
        explain: plain,
    },
];

/// What a failed call means of which nothing more is known.
fn plain(call: &str, peer: u32, error: &io::Error) -> Refusal {
    let reason = format!("{call} with rank {peer}: {error}");
    Refusal::new(reason, "it failed in use; the pair goes on without it")
}

const COUNT: usize = LAYERS.len();

// A row stands where its name points.
const _: () = {
    let mut at = 0;
    while at < COUNT {
        assert!(LAYERS[at].id as usize == at);
        at += 1;
    }
};

/// The one layer of a kind.
const fn the(power: Power) -> LayerId {
    let mut at = 0;
    while LAYERS[at].power as u8 != power as u8 {
        at += 1;
    }
    LAYERS[at].id
}

impl Power {
    /// Whether it copies straight between the buffers of two processes.
    #[must_use]
    pub const fn is_single(self) -> bool {
        matches!(self, Self::Map | Self::Attach | Self::Copy)
    }

    /// Whether a copy is this processor's own loads and stores.
    #[must_use]
    pub const fn loads(self) -> bool {
        matches!(self, Self::Map | Self::Attach)
    }
}

const SINGLES: usize = {
    let (mut at, mut count) = (0, 0);
    while at < COUNT {
        count += LAYERS[at].power.is_single() as usize;
        at += 1;
    }
    count
};

impl LayerId {
    /// All layers, in the order in which they are tried.
    pub const ALL: [Self; COUNT] = {
        let mut all = [Self::OWN; COUNT];
        let mut at = 0;
        while at < COUNT {
            all[at] = LAYERS[at].id;
            at += 1;
        }
        all
    };
    /// Those that copy straight between the buffers of two processes, in that order.
    pub const SINGLE: [Self; SINGLES] = {
        let mut all = [Self::OWN; SINGLES];
        let (mut at, mut count) = (0, 0);
        while at < COUNT {
            if LAYERS[at].power.is_single() {
                all[count] = LAYERS[at].id;
                count += 1;
            }
            at += 1;
        }
        all
    };
    /// The layer within one process.
    pub const OWN: Self = the(Power::Own);
    /// The layer of memory that is mapped from the start.
    pub const MAP: Self = the(Power::Map);
    /// The first layer that copies by a call.
    pub const CALL: Self = the(Power::Copy);
    /// The layer that always works.
    pub const CHUNKS: Self = the(Power::Chunks);

    /// Its row.
    #[inline]
    #[must_use]
    pub const fn row(self) -> &'static Layer {
        &LAYERS[self as usize]
    }

    /// The name as users write it.
    #[inline]
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// How it gets at the bytes.
    #[inline]
    #[must_use]
    pub const fn power(self) -> Power {
        self.row().power
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One value for each layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerLayer<T>([T; COUNT]);

impl<T> PerLayer<T> {
    /// What `of` says of each.
    pub fn new(of: impl FnMut(LayerId) -> T) -> Self {
        Self(LayerId::ALL.map(of))
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
pub struct LayerSet(u8);

const _: () = assert!(COUNT <= u8::BITS as usize, "a wider LayerSet");

impl LayerSet {
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

    /// Opens what these layers use of the kernel module.
    #[must_use]
    pub fn open_module(self, abi: ModuleAbi) -> Module {
        Module::open(self.has(LayerId::Xpmem), self.has(LayerId::Knem), abi)
    }

    /// Those of `layers` that copy by `power`, in the order in which they are tried.
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
