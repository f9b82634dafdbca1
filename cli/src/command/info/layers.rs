// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of this build, with what is known of each.

use onecopy::select::explain::Layers;
use onecopy::{LayerId, Refusal};
use onecopy_btl::module::{Behind, Interface, probe};
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

/// All layers in the order in which they are tried.
pub(super) fn list(layers: &Layers, pair: Option<&Pair>, knobs: &Knobs) -> Vec<Layer> {
    let proven = pair.map_or_else(
        || "proven by a transfer between two ranks".to_owned(),
        |pair| format!("proven by a transfer with rank {}", pair.peer),
    );
    let heap_bytes = onecopy::memory::geometry(knobs, 2).heap_bytes;
    let segment = match onecopy::machine::segment() {
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
    let heap_probe = if heap_bytes == 0 && layers[LayerId::Heap].is_some() {
        Probe::Available {
            detail: String::new(),
        }
    } else {
        heap::probe(heap_bytes)
    };
    let (xpmem, knem) = (knobs.layers.allows("xpmem"), knobs.layers.allows("knem"));
    let module = onecopy_btl::module::Module::open(xpmem, knem, knobs.module_abi);
    vec![
        Layer {
            seen: "messages of a rank to itself".into(),
            ..layer(LayerId::Own, own, "", None)
        },
        layer(
            LayerId::Heap,
            heap_probe,
            &proven,
            layers[LayerId::Heap].as_ref(),
        ),
        layer(
            LayerId::Xpmem,
            probe(module.behind_xpmem()),
            &proven,
            layers[LayerId::Xpmem].as_ref(),
        ),
        layer(
            LayerId::Cma,
            cma::probe(),
            &proven,
            layers[LayerId::Cma].as_ref(),
        ),
        layer(
            LayerId::Knem,
            probe(module.behind_knem()),
            &proven,
            layers[LayerId::Knem].as_ref(),
        ),
        layer(LayerId::Cico, segment, &proven, None),
    ]
}

/// What holds for a layer of the kernel module, by the interface that it uses.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Module {
    layer: &'static str,
    /// Which module, and by which device.
    behind: Option<String>,
    /// `extension` or `plain`; none without a module.
    interface: Option<&'static str>,
    /// What holds, in the order of [`QUESTIONS`].
    guarantees: Option<[&'static str; 6]>,
}

/// What one should know of a layer that reaches into another process.
pub(super) const QUESTIONS: [&str; 6] = [
    "who reaches a rank's memory",
    "namespaces, Yama",
    "the peer ends or frees while it is read",
    "pages pinned",
    "other memory at the same address",
    "what the owner may not write",
];

const XPMEM_EXTENSION: [&str; 6] = [
    "ranks of the job: who was given the descriptor",
    "do not matter",
    "an error; holes are counted, no signal",
    "none",
    "is seen by the next access",
    "nobody may",
];
const XPMEM_PLAIN: [&str; 6] = [
    "processes of the same user that know the segment's number",
    "the same user, as the kernel sees it; Yama is not asked",
    "an error; SIGBUS is taken for the length of each copy",
    "as the module does it",
    "as the module does it",
    "as the module does it",
];
const KNEM_EXTENSION: [&str; 6] = [
    "ranks of the job: who was given the descriptor",
    "do not matter",
    "an error",
    "while a copy runs",
    "is seen by the next copy",
    "nobody may",
];
const KNEM_PLAIN: [&str; 6] = [
    "processes of the same user that know a message's cookie, for reading",
    "the same user, as the kernel sees it; Yama is not asked",
    "an error",
    "those of a message, until it is received",
    "is another region: each message has its own",
    "is not written: regions are for reading",
];

/// What the module does for its two layers here.
pub(super) fn modules(knobs: &Knobs) -> [Module; 2] {
    let (xpmem, knem) = (knobs.layers.allows("xpmem"), knobs.layers.allows("knem"));
    let found = onecopy_btl::module::Module::open(xpmem, knem, knobs.module_abi);
    let of = |layer: LayerId, behind: Behind, extension, plain| {
        let behind = behind.ok();
        let by_extension = |interface: &Interface| *interface == Interface::Extension;
        let interface = behind
            .as_ref()
            .map(|(_, interface)| by_extension(interface));
        Module {
            layer: layer.name(),
            behind: behind.map(|(text, _)| text),
            interface: interface.map(|by| if by { "extension" } else { "plain" }),
            guarantees: interface.map(|by| if by { extension } else { plain }),
        }
    };
    [
        of(
            LayerId::Xpmem,
            found.behind_xpmem(),
            XPMEM_EXTENSION,
            XPMEM_PLAIN,
        ),
        of(
            LayerId::Knem,
            found.behind_knem(),
            KNEM_EXTENSION,
            KNEM_PLAIN,
        ),
    ]
}

/// The guarantees as a table; none if there is no module.
pub(super) fn guarantees(modules: &[Module; 2]) -> Option<String> {
    if modules.iter().all(|module| module.behind.is_none()) {
        return None;
    }
    let mut rows = tabled::builder::Builder::default();
    let wrap = |text: &str| super::text::wrap(text, 40);
    let row = |name: &str, cell: &dyn Fn(&Module) -> Option<String>| {
        let cells = modules
            .iter()
            .map(|module| wrap(&cell(module).unwrap_or_else(|| "-".into())));
        std::iter::once(wrap(name)).chain(cells).collect::<Vec<_>>()
    };
    rows.push_record(row("", &|module| Some(module.layer.to_owned())));
    rows.push_record(row("by", &|module| module.behind.clone()));
    rows.push_record(row("interface", &|module| {
        module.interface.map(str::to_owned)
    }));
    for (index, question) in QUESTIONS.iter().enumerate() {
        rows.push_record(row(question, &|module| {
            module.guarantees.map(|all| all[index].to_owned())
        }));
    }
    Some(
        rows.build()
            .with(tabled::settings::Style::psql())
            .to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_layer_keeps_reason_and_remedy() {
        let mut layers = Layers::default();
        layers[LayerId::Cma] = Some(Refusal::new("EPERM", "ask"));
        let list = list(&layers, None, &Knobs::default());
        let names: Vec<_> = list.iter().map(|layer| layer.name).collect();
        assert_eq!(names, ["self", "heap", "xpmem", "cma", "knem", "cico"]);
        assert_eq!(list[3].state, "unavailable");
        assert_eq!(list[1].state, "available");
        assert!(list[5].seen.contains("proven"), "{:?}", list[5]);
    }

    #[test]
    fn each_question_has_an_answer_where_there_is_a_module() {
        let module = |layer, all: Option<[&'static str; 6]>| Module {
            layer,
            behind: all.map(|_| "a module".to_owned()),
            interface: all.map(|_| "plain"),
            guarantees: all,
        };
        let none = [module("xpmem", None), module("knem", None)];
        assert!(guarantees(&none).is_none());
        let one = [module("xpmem", Some(XPMEM_PLAIN)), module("knem", None)];
        let text = guarantees(&one).expect("a table");
        assert!(text.contains("SIGBUS") && text.contains("who reaches"));
        for all in [XPMEM_EXTENSION, XPMEM_PLAIN, KNEM_EXTENSION, KNEM_PLAIN] {
            assert!(all.iter().all(|answer| !answer.is_empty()));
        }
    }
}
