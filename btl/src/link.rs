// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of one pair: which work, which were refused and why, and the ladder down which a pair goes when one fails.

use crate::contract::{CopyError, CopyLayer, LayerId, Refusal, RemoteRange};
use crate::{cico, cma, heap};
use onecopy_shm::coll::View;
use onecopy_shm::copy::CopyPlan;
use onecopy_shm::segment::PeerSegment;
use std::io::{IoSlice, IoSliceMut};

/// One rung of the ladder.
#[derive(Debug)]
pub enum Rung<L> {
    /// Proven by a transfer.
    Proven(L),
    /// Not to be used, and why.
    Refused(Refusal),
}

impl<L> Rung<L> {
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
    /// How large copies are made.
    pub plan: CopyPlan,
}

/// The copy layers of one pair.
#[derive(Debug)]
pub struct Link {
    /// Memory shared from the start.
    pub heap: Rung<heap::HeapLayer>,
    /// Cross-memory attach.
    pub cma: Rung<cma::CmaLayer>,
}

fn not_permitted() -> Refusal {
    Refusal::new("switched off by ONECOPY_LAYERS", "change ONECOPY_LAYERS")
}

impl Link {
    /// Proves each layer by a transfer. Only without shared memory can a pair not be connected at all.
    pub fn connect(
        peer: &mut PeerSegment,
        pid: Option<i32>,
        permitted: &Permitted,
    ) -> Result<Self, Refusal> {
        cico::prove(peer)?;
        let heap = if permitted.heap {
            heap::HeapLayer::prove(peer, permitted.plan)
        } else {
            Err(not_permitted())
        };
        let cma = if permitted.cma {
            cma::CmaLayer::prove(peer, pid)
        } else {
            Err(not_permitted())
        };
        Ok(Self {
            heap: heap.map_or_else(Rung::Refused, Rung::Proven),
            cma: cma.map_or_else(Rung::Refused, Rung::Proven),
        })
    }

    /// Gives up a layer for this pair.
    pub fn demote(&mut self, error: &CopyError) {
        match error.layer {
            LayerId::Heap => {
                self.heap = Rung::Refused(Refusal::new(
                    error.to_string(),
                    "it failed in use; the pair goes on without it",
                ))
            }
            LayerId::Cma => {
                let why = cma::explain(&error.source, error.call, error.peer);
                self.cma =
                    Rung::Refused(Refusal::new(format!("{}, in use", why.reason), why.remedy));
            }
            LayerId::Own | LayerId::Cico => {}
        }
    }

    /// Whether `layer` is proven and can read `range`.
    #[inline]
    #[must_use]
    pub fn can_get(&self, layer: LayerId, range: &RemoteRange) -> bool {
        match layer {
            LayerId::Heap => self.heap.layer().is_some_and(|l| l.reaches(range)),
            LayerId::Cma => self.cma.layer().is_some_and(|l| l.reaches(range)),
            LayerId::Own | LayerId::Cico => false,
        }
    }

    /// The bytes of `range` to be read in place, where a layer maps them.
    #[inline]
    #[must_use]
    pub fn view<'p>(&self, peer: &'p PeerSegment, range: &RemoteRange) -> Option<View<'p>> {
        self.heap.layer().and_then(|layer| layer.view(peer, range))
    }

    /// The best layer that can write to `range`.
    #[inline]
    #[must_use]
    pub fn putter(&self, range: &RemoteRange) -> Option<LayerId> {
        if self.heap.layer().is_some_and(|l| l.reaches(range)) {
            return Some(LayerId::Heap);
        }
        self.cma
            .layer()
            .filter(|l| l.can_write())
            .map(|_| LayerId::Cma)
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
        match (layer, &self.heap, &self.cma) {
            (LayerId::Heap, Rung::Proven(l), _) => l.get(peer, from, out),
            (LayerId::Cma, _, Rung::Proven(l)) => l.get(peer, from, out),
            _ => Err(unusable(layer, peer)),
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
        match (layer, &self.heap, &self.cma) {
            (LayerId::Heap, Rung::Proven(l), _) => l.put(peer, to, bytes),
            (LayerId::Cma, _, Rung::Proven(l)) => l.put(peer, to, bytes),
            _ => Err(unusable(layer, peer)),
        }
    }
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
