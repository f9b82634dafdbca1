// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of this build, with what is known of each.

use crate::select::explain::Layers;
use crate::{LayerId, Refusal};
use onecopy_btl::module::{Module, probe};
use onecopy_btl::{Probe, cma, heap};
use onecopy_obs::Knobs;
use serde::Serialize;
use std::fmt;

/// A layer and what is known of it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Layer {
    pub(super) name: &'static str,
    /// `available`, `unavailable` or `undetermined`.
    pub(super) state: &'static str,
    pub(super) seen: String,
    pub(super) reason: Option<String>,
    pub(super) remedy: Option<String>,
}

/// The pair of ranks that was looked at.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Pair {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) peer: usize,
    /// Whether ranks outnumber processors.
    pub(super) crowded: bool,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank, ranks, peer, ..
        } = self;
        let crowd = if self.crowded {
            "outnumber the processors: waits yield and sleep"
        } else {
            "do not outnumber the processors: waits poll"
        };
        write!(
            f,
            "rank {rank} of {ranks} towards rank {peer}; the ranks {crowd}"
        )
    }
}

fn layer(id: LayerId, probe: Probe, proven: &str, refusal: Option<&Refusal>) -> Layer {
    let base = Layer {
        name: id.name(),
        state: "available",
        seen: String::new(),
        reason: None,
        remedy: None,
    };
    let refused = |seen: String, refusal: &Refusal| Layer {
        state: "unavailable",
        seen,
        reason: Some(refusal.reason.clone()),
        remedy: Some(refusal.remedy.clone()),
        ..base.clone()
    };
    match (probe, refusal) {
        (Probe::Available { detail }, None) => Layer {
            seen: format!("{detail}; {proven}"),
            ..base
        },
        (Probe::Available { detail }, Some(refusal)) => refused(detail, refusal),
        (Probe::Unavailable(refusal), _) => refused(String::new(), &refusal),
        (Probe::Undetermined(error), Some(refusal)) => refused(error.to_string(), refusal),
        // A transfer between two ranks is a better answer than the question that failed.
        (Probe::Undetermined(error), None) => Layer {
            state: "undetermined",
            seen: format!("{proven}, although the probe failed"),
            reason: Some(error.to_string()),
            ..base
        },
    }
}

/// All layers in the order of the ladder.
pub(super) fn list(layers: &Layers, pair: Option<&Pair>, knobs: &Knobs) -> Vec<Layer> {
    let proven = pair.map_or_else(
        || "proven by a transfer between two ranks".to_owned(),
        |pair| format!("proven by a transfer with rank {}", pair.peer),
    );
    let heap_bytes = crate::engine::geometry(knobs, 2).heap_bytes;
    let segment = match crate::machine::segment() {
        Ok(()) => onecopy_btl::cico::probe(),
        Err(reason) => Probe::Unavailable(Refusal::new(
            reason,
            "without shared memory ranks cannot talk",
        )),
    };
    let own = Probe::Available {
        detail: "messages of a rank to itself".into(),
    };
    // Without an address range by the user's own list of layers, the pair's refusal names the list.
    let heap_probe = if heap_bytes == 0 && layers.heap.is_some() {
        Probe::Available {
            detail: String::new(),
        }
    } else {
        heap::probe(heap_bytes)
    };
    let (xpmem, knem) = (knobs.layers.allows("xpmem"), knobs.layers.allows("knem"));
    let module = Module::open(xpmem, knem, knobs.module_abi);
    vec![
        Layer {
            seen: "messages of a rank to itself".into(),
            ..layer(LayerId::Own, own, "", None)
        },
        layer(LayerId::Heap, heap_probe, &proven, layers.heap.as_ref()),
        layer(
            LayerId::Xpmem,
            probe(module.behind_xpmem()),
            &proven,
            layers.xpmem.as_ref(),
        ),
        layer(LayerId::Cma, cma::probe(), &proven, layers.cma.as_ref()),
        layer(
            LayerId::Knem,
            probe(module.behind_knem()),
            &proven,
            layers.knem.as_ref(),
        ),
        layer(LayerId::Cico, segment, &proven, None),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_layer_keeps_reason_and_remedy() {
        let layers = Layers {
            cma: Some(Refusal::new("EPERM", "ask")),
            ..Layers::default()
        };
        let list = list(&layers, None, &Knobs::default());
        let names: Vec<_> = list.iter().map(|layer| layer.name).collect();
        assert_eq!(names, ["self", "heap", "xpmem", "cma", "knem", "cico"]);
        assert_eq!(list[3].state, "unavailable");
        assert_eq!(list[1].state, "available");
        assert!(list[5].seen.contains("proven"), "{:?}", list[5]);
    }
}
