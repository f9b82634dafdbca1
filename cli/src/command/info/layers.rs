// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of this build, with what is known of each.

use onecopy::select::explain::Layers;
use onecopy::{LayerId, Refusal};
use onecopy_btl::Probe;
use onecopy_btl::contract::NodeFacts;
use onecopy_btl::layers::verbs::refused_mode;
use onecopy_btl::link::not_permitted;
use onecopy_btl::module::{Interface, QUESTIONS};
use onecopy_btl::registry::{self, LayerSet, Power};
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
    pub(super) oversubscribed: bool,
    /// What leads to the peer, if it is on another node.
    pub(super) wire: Option<Wire>,
}

/// What leads to a rank on another node.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Wire {
    pub(super) layer: &'static str,
    /// Where that rank listens.
    pub(super) place: String,
    /// The ports of devices by which messages go: first that of their stream. None by tcp.
    pub(super) rails: Vec<String>,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank, ranks, peer, ..
        } = self;
        let demand = if self.oversubscribed {
            "outnumber the processors: waits yield and sleep"
        } else {
            "do not outnumber the processors: waits poll"
        };
        write!(
            f,
            "rank {rank} of {ranks} towards rank {peer}; the ranks {demand}"
        )?;
        match &self.wire {
            Some(wire) => {
                write!(f, "\non another node, by {} at {}", wire.layer, wire.place)?;
                match wire.rails.split_first() {
                    None => Ok(()),
                    Some((first, [])) => write!(f, ", by {first}"),
                    Some((first, others)) => {
                        let others = others.join(", ");
                        write!(f, ", by {first}; stripes of long messages also by {others}")
                    }
                }
            }
            None => Ok(()),
        }
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

fn here(knobs: &Knobs) -> NodeFacts {
    NodeFacts {
        module: LayerSet::permitted(&knobs.layers).open_module(knobs.module_abi),
        heap_bytes: onecopy::memory::geometry(knobs, 2).heap_bytes,
        segment: onecopy::machine::segment()
            .map_err(|reason| Refusal::new(reason, "without shared memory ranks cannot talk")),
    }
}

/// What a look at the machine says of a layer, where the knobs may ask a device for what it has not.
fn of_mode(row: &registry::Layer, knobs: &Knobs, probe: Probe) -> Probe {
    match (row.power, probe) {
        (Power::Lane, Probe::Available { detail }) => match refused_mode(knobs) {
            Some(refusal) => Probe::Unavailable(refusal),
            None => Probe::Available { detail },
        },
        (_, probe) => probe,
    }
}

/// Why ranks of this host get no lane, as far as one is enough to know it.
pub(super) fn no_lane(knobs: &Knobs) -> Option<Refusal> {
    let lane = LayerId::LANE;
    if !knobs.layers.allows(lane.name()) {
        return Some(not_permitted());
    }
    match of_mode(lane.row(), knobs, (lane.row().probe)(&here(knobs))) {
        Probe::Available { .. } => None,
        Probe::Unavailable(refusal) => Some(refusal),
        Probe::Undetermined(error) => Some(Refusal::new(error.to_string(), "")),
    }
}

/// All layers in the order in which they are tried.
pub(super) fn list(layers: &Layers, pair: Option<&Pair>, knobs: &Knobs) -> Vec<Layer> {
    let proven = pair.map_or_else(
        || "proven by a transfer between two ranks".to_owned(),
        |pair| format!("proven by a transfer with rank {}", pair.peer),
    );
    let takes_over = format!(
        "takes over what {} carries between two ranks on different nodes",
        LayerId::WIRE
    );
    let here = here(knobs);
    let shown = |row: &registry::Layer| {
        let refusal = layers[row.id].as_ref();
        let probe = match row.power {
            // Without an address range by the user's own list of layers, the pair's refusal names the list.
            Power::Map if here.heap_bytes == 0 && refusal.is_some() => Probe::Available {
                detail: String::new(),
            },
            _ => of_mode(row, knobs, (row.probe)(&here)),
        };
        let proven = match row.power {
            Power::Wire if pair.is_none_or(|pair| pair.wire.is_none()) => {
                "proven by the connection of two ranks on different nodes"
            }
            Power::Lane => takes_over.as_str(),
            _ => proven.as_str(),
        };
        match (row.power, probe) {
            // Nothing is proven within a rank.
            (Power::Own, Probe::Available { detail }) => Layer {
                name: row.name,
                state: "available",
                seen: detail,
                reason: None,
                remedy: None,
            },
            (_, probe) => layer(row.id, probe, proven, refusal),
        }
    };
    registry::LAYERS.iter().map(shown).collect()
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

/// What the module does for its layers here.
pub(super) fn modules(knobs: &Knobs) -> Vec<Module> {
    let found = LayerSet::permitted(&knobs.layers).open_module(knobs.module_abi);
    let shown = |row: &registry::Layer| {
        let of_module = row.of_module.as_ref()?;
        let behind = (of_module.behind)(&found).ok();
        let interface = behind.as_ref().map(|(_, interface)| *interface);
        Some(Module {
            layer: row.name,
            behind: behind.map(|(text, _)| text),
            interface: interface.map(|interface| match interface {
                Interface::Extension => "extension",
                Interface::Plain => "plain",
            }),
            guarantees: interface.map(|interface| of_module.guarantees.for_interface(interface)),
        })
    };
    registry::LAYERS.iter().filter_map(shown).collect()
}

/// The guarantees as a table; none if there is no module.
pub(super) fn guarantees(modules: &[Module]) -> Option<String> {
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
        assert_eq!(
            names,
            [
                "self", "heap", "xpmem", "cma", "knem", "cico", "verbs", "tcp"
            ]
        );
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
        let all = registry::LAYERS
            .iter()
            .filter_map(|row| row.of_module.as_ref());
        let all: Vec<_> = all.map(|of_module| &of_module.guarantees).collect();
        let one = [module("xpmem", Some(all[0].plain)), module("knem", None)];
        let text = guarantees(&one).expect("a table");
        assert!(text.contains("SIGBUS") && text.contains("who reaches"));
        for all in all.iter().flat_map(|all| [all.extension, all.plain]) {
            assert!(all.iter().all(|answer| !answer.is_empty()));
        }
    }
}
