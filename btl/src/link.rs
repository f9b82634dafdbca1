// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of one pair: which work, which were refused and why, and the order in which a pair falls back when one
//! fails.

use crate::contract::{
    AttachLayer, AttachedBytes, CopyLayer, Failure, LayerSettings, PeerAccess, Refusal, RemoteRange,
};
use crate::module::Region;
use crate::registry::{LayerId, LayerSet, PerLayer, Prove, Proven};
use onecopy_shm::coll::View;
use onecopy_shm::segment::PeerSegment;
use std::io::{self, IoSlice, IoSliceMut};

/// A transfer that failed. Nothing is known of the bytes that it was to move.
#[derive(Debug, thiserror::Error)]
#[error("{layer}: {call} of {bytes} bytes with rank {peer}: {source}")]
pub struct CopyError {
    /// The layer.
    pub layer: LayerId,
    /// The call that failed.
    pub call: &'static str,
    /// The peer.
    pub peer: u32,
    /// Bytes asked for.
    pub bytes: u64,
    /// The reason.
    pub source: io::Error,
}

impl CopyError {
    /// Whether the peer's memory is gone as a whole, with its process. The module knows that at once, while the process
    /// may still take long to end.
    #[must_use]
    pub fn owner_is_dead(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EOWNERDEAD)
    }

    /// What it means, and what to do about it.
    #[must_use]
    pub fn explain(&self) -> Refusal {
        (self.layer.row().explain)(self.call, self.peer, &self.source)
    }
}

/// What may be used with a peer at all.
#[derive(Debug, Clone)]
pub struct Permitted {
    /// The layers that the user permits, and this rank can use.
    pub layers: LayerSet,
    /// How.
    pub terms: LayerSettings,
}

/// The copy layers of one pair.
#[derive(Debug)]
pub struct Link {
    peer: u32,
    layers: PerLayer<Result<Proven, Refusal>>,
}

impl Proven {
    fn layer(&self) -> &dyn CopyLayer {
        match self {
            Self::Map(map) => map,
            Self::Attach(attach) => &**attach,
            Self::Copy(copy) => &**copy,
        }
    }
}

/// Of a layer that the user's list does not name.
#[must_use]
pub fn not_permitted() -> Refusal {
    Refusal::new("switched off by ONECOPY_LAYERS", "change ONECOPY_LAYERS")
}

/// Of layers that have no part in a link.
fn no_copies() -> Refusal {
    Refusal::new("it copies nothing between two buffers", "nothing is wrong")
}

/// Proves that a segment can be shared with its owner at all, and maps its pool, `writable` or not.
///
/// # Errors
/// A [`Refusal`]: the pair cannot talk by shared memory.
pub fn prove_segment(peer: &mut PeerSegment, writable: bool) -> Result<(), Refusal> {
    match LayerId::CHUNKS.row().prove {
        Prove::Segment(prove) => prove(peer, writable),
        Prove::Nothing | Prove::Pair(_) => Ok(()),
    }
}

impl Link {
    /// Proves each layer by a transfer. Only without shared memory can a pair not be connected at all.
    ///
    /// # Errors
    /// As [`prove_segment`]. A layer that refuses is no error: [`Self::refusals`] tells.
    pub fn connect(
        peer: &mut PeerSegment,
        means: &PeerAccess,
        permitted: &Permitted,
    ) -> Result<Self, Refusal> {
        prove_segment(peer, permitted.terms.pool_writable)?;
        Ok(Self {
            peer: peer.rank(),
            layers: PerLayer::new(|layer| match layer.row().prove {
                Prove::Pair(_) if !permitted.layers.has(layer) => Err(not_permitted()),
                Prove::Pair(prove) => prove(peer, means, &permitted.terms),
                Prove::Nothing | Prove::Segment(_) => Err(no_copies()),
            }),
        })
    }

    /// The link to a peer that no layer reaches, and why: one without a segment here, for example.
    #[must_use]
    pub fn refused(peer: u32, why: &Refusal) -> Self {
        let layers = PerLayer::new(|_| Err(why.clone()));
        Self { peer, layers }
    }

    /// Gives up a layer for this pair.
    pub fn demote(&mut self, error: &CopyError) {
        let why = error.explain();
        self.layers[error.layer] = Err(Refusal::new(format!("{}, in use", why.reason), why.remedy));
    }

    /// The layers that copy, in the order in which they are tried, with what they were refused for.
    pub fn refusals(&self) -> impl Iterator<Item = (LayerId, Option<&Refusal>)> {
        LayerId::SINGLE
            .into_iter()
            .map(|layer| (layer, self.layers[layer].as_ref().err()))
    }

    /// The layers that are proven.
    #[must_use]
    pub fn proven(&self) -> LayerSet {
        let layers = LayerId::SINGLE.into_iter();
        layers.filter(|&layer| self.has(layer)).collect()
    }

    /// Whether the layer is proven.
    #[inline]
    #[must_use]
    pub fn has(&self, layer: LayerId) -> bool {
        self.layers[layer].is_ok()
    }

    fn copiers(&self) -> impl Iterator<Item = (LayerId, &Proven)> {
        LayerId::SINGLE
            .into_iter()
            .filter_map(|layer| Some((layer, self.layers[layer].as_ref().ok()?)))
    }

    /// Whether `layer` is proven and can read `range`.
    #[inline]
    #[must_use]
    pub fn can_get(&self, layer: LayerId, range: &RemoteRange) -> bool {
        match &self.layers[layer] {
            Ok(Proven::Map(map)) => map.reaches(range),
            Ok(proven) => proven.layer().reaches(range),
            Err(_) => false,
        }
    }

    /// The layer, if it is proven and attaches.
    #[inline]
    #[must_use]
    pub fn attaching(&self, layer: LayerId) -> Option<&dyn AttachLayer> {
        match &self.layers[layer] {
            Ok(Proven::Attach(attach)) => Some(&**attach),
            _ => None,
        }
    }

    fn all_attaching(&self) -> impl Iterator<Item = &dyn AttachLayer> {
        LayerId::SINGLE
            .into_iter()
            .filter_map(|layer| self.attaching(layer))
    }

    /// Whether a transfer of `total` bytes, of which the range is a part, may go by `layer`. What is to be attached
    /// must have earned it.
    #[must_use]
    pub fn has_earned(&self, layer: LayerId, range: &RemoteRange, total: u64) -> bool {
        self.attaching(layer)
            .is_none_or(|attach| attach.earned(range, total))
    }

    /// Whether this rank could only read plain memory if the peer exposes each message.
    #[must_use]
    pub fn wants_exposure(&self) -> bool {
        let mut plain = self
            .copiers()
            .filter(|(_, proven)| !matches!(proven, Proven::Map(_)))
            .map(|(_, proven)| proven.layer().wants_exposure())
            .peekable();
        plain.peek().is_some() && plain.all(|wants| wants)
    }

    /// The layer for which a message can be exposed.
    #[inline]
    #[must_use]
    pub fn exposing(&self) -> Option<LayerId> {
        let layers = LayerId::EXPOSING.into_iter();
        layers.flatten().find(|&layer| self.has(layer))
    }

    /// Exposes pieces (address, bytes) of this process's memory for the peer to copy from by `layer`; none if it needs
    /// no such thing.
    pub fn expose(
        &self,
        layer: LayerId,
        mut pieces: impl Iterator<Item = (usize, usize)>,
    ) -> Option<Result<Region, CopyError>> {
        let proven = self.layers[layer].as_ref().ok()?;
        let exposed = proven.layer().expose(&mut pieces)?;
        Some(exposed.map_err(|failure| self.failed(layer, &[], failure)))
    }

    /// The bytes of `range` to be read in place, where a layer maps them.
    #[inline]
    #[must_use]
    pub fn view(&self, range: &RemoteRange) -> Option<View<'_>> {
        match &self.layers[LayerId::MAP] {
            Ok(Proven::Map(map)) => map.view(range),
            _ => None,
        }
    }

    /// Whether the bytes of a transfer of `total`, of which the range is a part, can be read in place by
    /// [`Self::attached`]. To be asked once per transfer; attaches the range.
    #[must_use]
    pub fn attaches(&self, range: &RemoteRange, total: u64) -> bool {
        self.all_attaching().any(|attach| {
            let can = attach.shows_in_place() && attach.reaches(range);
            let will = can && attach.earned(range, total);
            if will {
                attach.reserve(range);
            }
            will
        })
    }

    /// The bytes of `range` to be read in place where a layer has attached them.
    #[must_use]
    pub fn attached(&self, range: &RemoteRange) -> Option<AttachedBytes<'_>> {
        self.all_attaching()
            .find_map(|attach| attach.attached(range))
    }

    /// The best layer that can write to `range`.
    #[inline]
    #[must_use]
    pub fn putter(&self, range: &RemoteRange) -> Option<LayerId> {
        let can = |proven: &Proven| match proven {
            Proven::Map(map) => map.reaches(range),
            proven => {
                let layer = proven.layer();
                layer.can_write() && layer.reaches(range) && layer.is_ready(range)
            }
        };
        self.copiers()
            .find_map(|(layer, proven)| (layer.row().writes && can(proven)).then_some(layer))
    }

    /// Reads by `layer`, which must be proven.
    ///
    /// # Errors
    /// [`CopyError`]: the layer is not proven, or failed. Some bytes may have been copied.
    #[inline]
    pub fn get(
        &self,
        layer: LayerId,
        from: &[RemoteRange],
        out: &mut [IoSliceMut<'_>],
    ) -> Result<(), CopyError> {
        let result = match &self.layers[layer] {
            // Named first, so that the shortest path has no dispatch in it.
            Ok(Proven::Map(map)) => map.get(from, out),
            Ok(proven) => proven.layer().get(from, out),
            Err(_) => Err(unusable()),
        };
        result.map_err(|failure| self.failed(layer, from, failure))
    }

    /// Writes by `layer`, which must be proven.
    ///
    /// # Errors
    /// [`CopyError`]: the layer is not proven, or failed. Some bytes may have been copied.
    #[inline]
    pub fn put(
        &self,
        layer: LayerId,
        to: &[RemoteRange],
        bytes: &[IoSlice<'_>],
    ) -> Result<(), CopyError> {
        let result = match &self.layers[layer] {
            Ok(Proven::Map(map)) => map.put(to, bytes),
            Ok(proven) => proven.layer().put(to, bytes),
            Err(_) => Err(unusable()),
        };
        result.map_err(|failure| self.failed(layer, to, failure))
    }

    #[cold]
    fn failed(&self, layer: LayerId, ranges: &[RemoteRange], failure: Failure) -> CopyError {
        CopyError {
            layer,
            call: failure.call,
            peer: self.peer,
            bytes: ranges.iter().map(|range| range.len).sum(),
            source: failure.source,
        }
    }
}

#[cold]
fn unusable() -> Failure {
    Failure {
        call: "transfer",
        source: io::Error::other("the layer is not in use for this pair"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_no_layer_reaches_has_a_link_that_says_why() {
        let mut link = Link::refused(3, &Refusal::new("it is on another node", "none"));
        assert_eq!(link.proven(), LayerSet::default());
        for (layer, refusal) in link.refusals() {
            let refusal = refusal.expect("refused");
            assert_eq!(refusal.reason, "it is on another node", "{layer}");
        }
        let range = RemoteRange {
            address: 4096,
            heap: None,
            region: None,
            len: 8,
        };
        assert!(link.putter(&range).is_none() && link.view(&range).is_none());
        assert!(!link.wants_exposure() && link.exposing().is_none());
        assert!(!link.attaches(&range, 8) && link.attached(&range).is_none());
        for layer in LayerId::ALL {
            assert!(!link.can_get(layer, &range));
            let error = link.get(layer, &[range], &mut []).expect_err("refused");
            assert_eq!((error.layer, error.peer, error.bytes), (layer, 3, 8));
            link.demote(&error);
        }
        let why = link.refusals().next().and_then(|(_, why)| why.cloned());
        assert!(why.is_some_and(|why| why.reason.ends_with(", in use")));
    }
}
