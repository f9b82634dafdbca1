// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of one pair: which work, which were refused and why, and the order in which a pair falls back when one fails.

use crate::contract::{CopyError, CopyLayer, LayerId, Refusal, RemoteRange};
use crate::module::{Interface, Module, Offer};
use crate::rcache::Limits;
use crate::xpmem::Attached;
use crate::{cico, cma, heap, knem, xpmem};
use onecopy_shm::coll::View;
use onecopy_shm::copy::CopyPlan;
use onecopy_shm::segment::PeerSegment;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

/// One layer of the pair.
#[derive(Debug)]
pub enum PairLayer<L> {
    /// Proven by a transfer.
    Proven(L),
    /// Not to be used, and why.
    Refused(Refusal),
}

impl<L> PairLayer<L> {
    /// The layer, if it is proven.
    #[inline]
    pub fn layer(&self) -> Option<&L> {
        match self {
            Self::Proven(layer) => Some(layer),
            Self::Refused(_) => None,
        }
    }
    /// The reason, if it is refused.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Proven(_) => None,
            Self::Refused(refusal) => Some(refusal),
        }
    }
}

/// What may be used with a peer at all.
#[derive(Debug, Clone)]
pub struct Permitted {
    /// Whether the user permits the heap layer.
    pub heap: bool,
    /// Whether the user permits cross-memory attach.
    pub cma: bool,
    /// Whether the user permits attached memory.
    pub xpmem: bool,
    /// Whether the user permits copies by the kernel module.
    pub knem: bool,
    /// Whether peers' chunks are mapped writable.
    pub pool_writable: bool,
    /// How large copies are made.
    pub plan: CopyPlan,
    /// The devices of the kernel module.
    pub module: Module,
    /// What bounds the windows attached of one peer.
    pub limits: Limits,
}

/// How a peer can be reached, besides its segment.
#[derive(Debug, Default)]
pub struct Means {
    /// Its process id here.
    pub pid: Option<i32>,
    /// The descriptor by which it granted its memory.
    pub grant: Option<OwnedFd>,
    /// The numbers that it told.
    pub offer: Offer,
}

/// The copy layers of one pair.
#[derive(Debug)]
pub struct Link {
    /// Memory shared from the start.
    pub heap: PairLayer<heap::HeapLayer>,
    /// Attached memory.
    pub xpmem: PairLayer<xpmem::XpmemLayer>,
    /// Cross-memory attach.
    pub cma: PairLayer<cma::CmaLayer>,
    /// Copies by the kernel module.
    pub knem: PairLayer<knem::KnemLayer>,
}

fn not_permitted() -> Refusal {
    Refusal::new("switched off by ONECOPY_LAYERS", "change ONECOPY_LAYERS")
}

impl Link {
    /// Proves each layer by a transfer. Only without shared memory can a pair not be connected at all.
    pub fn connect(
        peer: &mut PeerSegment,
        means: Means,
        permitted: &Permitted,
    ) -> Result<Self, Refusal> {
        cico::prove(peer, permitted.pool_writable)?;
        let heap = if permitted.heap {
            heap::HeapLayer::prove(peer, permitted.plan)
        } else {
            Err(not_permitted())
        };
        let cma = if permitted.cma {
            cma::CmaLayer::prove(peer, means.pid)
        } else {
            Err(not_permitted())
        };
        let module = &permitted.module;
        let grant = means.grant.as_ref().map(AsFd::as_fd);
        let xpmem = if permitted.xpmem {
            let (limits, plan) = (permitted.limits, permitted.plan);
            xpmem::XpmemLayer::prove(peer, module, grant, &means.offer, limits, plan)
        } else {
            Err(not_permitted())
        };
        let knem = if permitted.knem {
            knem::KnemLayer::prove(peer, module, grant, &means.offer)
        } else {
            Err(not_permitted())
        };
        Ok(Self {
            heap: heap.map_or_else(PairLayer::Refused, PairLayer::Proven),
            xpmem: xpmem.map_or_else(PairLayer::Refused, PairLayer::Proven),
            cma: cma.map_or_else(PairLayer::Refused, PairLayer::Proven),
            knem: knem.map_or_else(PairLayer::Refused, PairLayer::Proven),
        })
    }

    /// The link of a pair that no layer serves.
    #[must_use]
    pub fn apart(reason: &str, remedy: &str) -> Self {
        let refusal = || Refusal::new(reason, remedy);
        Self {
            heap: PairLayer::Refused(refusal()),
            xpmem: PairLayer::Refused(refusal()),
            cma: PairLayer::Refused(refusal()),
            knem: PairLayer::Refused(refusal()),
        }
    }

    /// Gives up a layer for this pair.
    pub fn demote(&mut self, error: &CopyError) {
        match error.layer {
            LayerId::Heap => {
                self.heap = PairLayer::Refused(Refusal::new(
                    error.to_string(),
                    "it failed in use; the pair goes on without it",
                ))
            }
            LayerId::Cma => {
                let why = cma::explain(&error.source, error.call, error.peer);
                self.cma = in_use(why);
            }
            LayerId::Xpmem => {
                self.xpmem = in_use(xpmem::explain(error.call, error.peer, &error.source));
            }
            LayerId::Knem => {
                self.knem = in_use(knem::explain(error.call, error.peer, &error.source));
            }
            LayerId::Own | LayerId::Cico => {}
        }
    }

    /// The layers that copy, in the order in which they are tried, with what they were refused for.
    #[must_use]
    pub fn refusals(&self) -> [(LayerId, Option<&Refusal>); 4] {
        [
            (LayerId::Heap, self.heap.refusal()),
            (LayerId::Xpmem, self.xpmem.refusal()),
            (LayerId::Cma, self.cma.refusal()),
            (LayerId::Knem, self.knem.refusal()),
        ]
    }

    fn layer(&self, layer: LayerId) -> Option<&dyn CopyLayer> {
        fn some<L: CopyLayer>(layer: &PairLayer<L>) -> Option<&dyn CopyLayer> {
            layer.layer().map(|layer| layer as &dyn CopyLayer)
        }
        match layer {
            LayerId::Heap => some(&self.heap),
            LayerId::Xpmem => some(&self.xpmem),
            LayerId::Cma => some(&self.cma),
            LayerId::Knem => some(&self.knem),
            LayerId::Own | LayerId::Cico => None,
        }
    }

    /// Whether `layer` is proven and can read `range`.
    #[inline]
    #[must_use]
    pub fn can_get(&self, layer: LayerId, range: &RemoteRange) -> bool {
        self.layer(layer).is_some_and(|l| l.reaches(range))
    }

    /// Whether a transfer of `total` bytes, of which the range is a part, may go by `layer`: what is to be attached must have earned it.
    #[must_use]
    pub fn has_earned(&self, layer: LayerId, range: &RemoteRange, total: u64) -> bool {
        match (layer, &self.xpmem) {
            (LayerId::Xpmem, PairLayer::Proven(xpmem)) => xpmem.earned(range, total),
            _ => true,
        }
    }

    /// Whether this rank could only read a message by the kernel module if the peer exposes it as a region.
    #[must_use]
    pub fn wants_region(&self) -> bool {
        self.xpmem.layer().is_none()
            && self.cma.layer().is_none()
            && self
                .knem
                .layer()
                .is_some_and(|l| l.interface() == Interface::Plain)
    }

    /// The bytes of `range` to be read in place, where a layer maps them.
    #[inline]
    #[must_use]
    pub fn view<'p>(&self, peer: &'p PeerSegment, range: &RemoteRange) -> Option<View<'p>> {
        self.heap.layer().and_then(|layer| layer.view(peer, range))
    }

    /// Whether the bytes of a transfer of `total`, of which the range is a part, can be read in place by [`Self::attached`]. To be asked once per
    /// transfer; attaches the range.
    #[must_use]
    pub fn attaches(&self, range: &RemoteRange, total: u64) -> bool {
        self.xpmem.layer().is_some_and(|xpmem| {
            let can = xpmem.interface() == Interface::Extension && xpmem.reaches(range);
            let will = can && xpmem.earned(range, total);
            if will {
                xpmem.reserve(range);
            }
            will
        })
    }

    /// The bytes of `range` to be read in place where the kernel module has mapped them.
    #[must_use]
    pub fn attached(&self, range: &RemoteRange) -> Option<Attached<'_>> {
        self.xpmem.layer()?.attached(range)
    }

    /// The best layer that can write to `range`.
    #[inline]
    #[must_use]
    pub fn putter(&self, range: &RemoteRange) -> Option<LayerId> {
        if self.heap.layer().is_some_and(|l| l.reaches(range)) {
            return Some(LayerId::Heap);
        }
        let xpmem = self.xpmem.layer();
        if xpmem.is_some_and(|l| l.can_write() && l.reaches(range) && l.is_ready(range)) {
            return Some(LayerId::Xpmem);
        }
        if self.cma.layer().is_some_and(cma::CmaLayer::can_write) {
            return Some(LayerId::Cma);
        }
        self.knem
            .layer()
            .filter(|l| l.can_write())
            .map(|_| LayerId::Knem)
    }

    /// Reads by `layer`, which must be proven.
    #[inline]
    pub fn get(
        &self,
        layer: LayerId,
        peer: &PeerSegment,
        from: &[RemoteRange],
        out: &mut [IoSliceMut<'_>],
    ) -> Result<(), CopyError> {
        // Named first, so that the shortest path has no dispatch in it.
        if let (LayerId::Heap, PairLayer::Proven(heap)) = (layer, &self.heap) {
            return heap.get(peer, from, out);
        }
        match self.layer(layer) {
            Some(layer) => layer.get(peer, from, out),
            None => Err(unusable(layer, peer)),
        }
    }

    /// Writes by `layer`, which must be proven.
    #[inline]
    pub fn put(
        &self,
        layer: LayerId,
        peer: &PeerSegment,
        to: &[RemoteRange],
        bytes: &[IoSlice<'_>],
    ) -> Result<(), CopyError> {
        if let (LayerId::Heap, PairLayer::Proven(heap)) = (layer, &self.heap) {
            return heap.put(peer, to, bytes);
        }
        match self.layer(layer) {
            Some(layer) => layer.put(peer, to, bytes),
            None => Err(unusable(layer, peer)),
        }
    }
}

fn in_use<L>(why: Refusal) -> PairLayer<L> {
    PairLayer::Refused(Refusal::new(format!("{}, in use", why.reason), why.remedy))
}

fn unusable(layer: LayerId, peer: &PeerSegment) -> CopyError {
    CopyError {
        layer,
        call: "transfer",
        peer: peer.rank(),
        bytes: 0,
        source: std::io::Error::other("the layer is not in use for this pair"),
    }
}
