// SPDX-License-Identifier: MIT OR Apache-2.0
//! From batches to records.

use super::gate::{Gate, State};
use super::targets;
use onecopy_bench::{Mechanism, Missing, Mode, Pattern};
use serde::{Deserialize, Serialize};

/// One batch as it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Microseconds per message.
    pub us: f64,
    /// Raw hand-off before, nanoseconds.
    pub before_ns: f64,
    /// Raw hand-off after, nanoseconds.
    pub after_ns: f64,
}

/// What takes its turn in a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A mechanism of the runtime.
    Mechanism(Mechanism),
    /// A limit of the machine, its name and whether its private memory is on huge pages.
    Limit(String, bool),
}

/// What one contestant did at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    /// Who it is.
    pub who: Subject,
    /// Its batches.
    pub samples: Vec<Sample>,
    /// Bytes that were checked.
    pub checked_bytes: u64,
    /// The most bytes of temporary buffers that the ranks' pools had, summed.
    pub pool_bytes: u64,
    /// Why it has no batches.
    pub refused: Option<String>,
}

/// All contestants with one pattern, mode and size.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// How messages follow one another.
    pub pattern: Pattern,
    /// Which memory they use.
    pub mode: Mode,
    /// Bytes of one message.
    pub size: usize,
    /// Messages on their way at once.
    pub window: usize,
    /// Those who took turns.
    pub contestants: Vec<Contestant>,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Bounds of near and far.
    pub gate: Gate,
    /// Ranks of each job.
    pub ranks: usize,
    /// What was measured.
    pub points: Vec<Point>,
    /// Mechanisms that this machine lacks.
    pub missing: Vec<Missing>,
}

/// Batches of one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median, microseconds per message.
    pub median_us: Option<f64>,
    /// Least.
    pub min_us: Option<f64>,
    /// How many batches there were.
    pub batches: usize,
}

impl Summary {
    /// Of these figures.
    #[must_use]
    pub fn of(mut us: Vec<f64>) -> Self {
        us.sort_by(f64::total_cmp);
        let middle = us.len() / 2;
        let median = match us.len() {
            0 => None,
            n if n % 2 == 1 => Some(us[middle]),
            _ => Some(f64::midpoint(us[middle - 1], us[middle])),
        };
        Self {
            median_us: median.map(round),
            min_us: us.first().copied().map(round),
            batches: us.len(),
        }
    }
}

impl Summary {
    /// Of the batches in this state; none: of all.
    #[must_use]
    pub fn in_state(gate: &Gate, samples: &[Sample], state: Option<State>) -> Self {
        let is_of_state =
            |s: &&Sample| state.is_none_or(|x| gate.state(s.before_ns, s.after_ns) == x);
        Self::of(samples.iter().filter(is_of_state).map(|s| s.us).collect())
    }
}

/// Picoseconds are enough.
fn round(us: f64) -> f64 {
    (us * 1e6).round() / 1e6
}

/// One result: a pattern, mode, mechanism and size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// How messages follow one another.
    pub pattern: Pattern,
    /// Which memory they use.
    pub mode: Mode,
    /// What carried them.
    pub mechanism: Mechanism,
    /// Bytes of one message.
    pub size: usize,
    /// Batches in the near state.
    pub near: Summary,
    /// Batches in the far state.
    pub far: Summary,
    /// Every batch, those too that are neither near nor far.
    pub all: Summary,
    /// Median of the limit in the state that the ratio is of.
    pub limit_us: Option<f64>,
    /// Which limit.
    pub limit: Option<String>,
    /// Median divided by the limit.
    pub ratio: Option<f64>,
    /// The state that the ratio is of: near where there is any, else far, else all batches.
    pub ratio_of: String,
    /// Bytes that were compared with what was sent, outside the timed loops.
    pub checked_bytes: u64,
    /// Of a collective, the most bytes of temporary buffers that the pools of all ranks had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_bytes: Option<u64>,
    /// Median divided by the least raw hand-off of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_offs: Option<f64>,
    /// What is to be reached, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_us: Option<f64>,
    /// Messages on their way at once.
    pub window: usize,
    /// Ranks of the job.
    pub ranks: usize,
    /// Least raw hand-off of the run, nanoseconds.
    pub floor_ns: f64,
}

/// One limit at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRecord {
    /// How messages follow one another.
    pub pattern: Pattern,
    /// Which memory they use.
    pub mode: Mode,
    /// Its name.
    pub limit: String,
    /// Bytes of one message.
    pub size: usize,
    /// Batches in the near state.
    pub near: Summary,
    /// Batches in the far state.
    pub far: Summary,
    /// Every batch.
    pub all: Summary,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub refused: Option<String>,
}

struct StateSummaries {
    near: Summary,
    far: Summary,
    all: Summary,
}

fn summaries(gate: &Gate, samples: &[Sample]) -> StateSummaries {
    let summary = |state| Summary::in_state(gate, samples, state);
    StateSummaries {
        near: summary(Some(State::Near)),
        far: summary(Some(State::Far)),
        all: summary(None),
    }
}

/// How a limit is called in a record: huge pages are part of the name.
fn limit_name(name: &str, huge: bool) -> String {
    if huge {
        format!("{name}-huge")
    } else {
        name.to_owned()
    }
}

/// Which limits bound a mechanism: those whose mechanism it could be, given memory of its kind. What lacks near batches
/// is passed over in favour of what has them.
fn bounds(mechanism: Mechanism, size: usize, name: &str, huge: bool) -> bool {
    if matches!(name, "hand-off" | "next-line" | "slots") {
        return true;
    }
    let cma = name.starts_with("cma");
    if mechanism.is_kernel_copy() && size >= 4096 {
        cma && huge == (mechanism == Mechanism::CmaHuge)
    } else {
        // "direct" and its kernels: one core copies once.
        name.starts_with("direct")
    }
}

impl Run {
    /// How many batches were near, far and dropped.
    #[must_use]
    pub fn states(&self) -> [usize; 3] {
        let mut count = [0; 3];
        for sample in self
            .points
            .iter()
            .flat_map(|point| &point.contestants)
            .flat_map(|contestant| &contestant.samples)
        {
            count[self.gate.state(sample.before_ns, sample.after_ns) as usize] += 1;
        }
        count
    }

    /// The record of each mechanism at each point.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        for point in &self.points {
            for contestant in &point.contestants {
                if let Subject::Mechanism(mechanism) = contestant.who {
                    records.push(self.record(point, contestant, mechanism));
                }
            }
        }
        records
    }

    fn record(&self, point: &Point, contestant: &Contestant, mechanism: Mechanism) -> Record {
        let own = summaries(&self.gate, &contestant.samples);
        let (ratio_of, own_median): (_, fn(&StateSummaries) -> Option<f64>) =
            if own.near.batches > 0 {
                ("near", |three| three.near.median_us)
            } else if own.far.batches > 0 {
                ("far", |three| three.far.median_us)
            } else {
                ("all", |three| three.all.median_us)
            };
        let limit = point
            .contestants
            .iter()
            .filter_map(|other| match &other.who {
                Subject::Limit(name, huge) if bounds(mechanism, point.size, name, *huge) => {
                    let median = own_median(&summaries(&self.gate, &other.samples))?;
                    Some((limit_name(name, *huge), median))
                }
                _ => None,
            })
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let ratio = limit.as_ref().and_then(|(_, limit)| {
            let median = own_median(&own)?;
            (*limit > 0.0).then(|| (median / limit * 1000.0).round() / 1000.0)
        });
        let collective = point.pattern.is_collective();
        let floor = self.gate.floor_ns;
        let hand_offs = own_median(&own)
            .filter(|_| collective && floor > 0.0)
            .map(|us| (us * 1e4 / floor).round() / 10.0);
        Record {
            pool_bytes: collective.then_some(contestant.pool_bytes),
            hand_offs,
            target_us: targets::target(point.pattern, mechanism, point.size, self.ranks),
            pattern: point.pattern,
            mode: point.mode,
            mechanism,
            size: point.size,
            near: own.near,
            far: own.far,
            all: own.all,
            limit_us: limit.as_ref().map(|(_, us)| *us),
            limit: limit.map(|(name, _)| name),
            ratio,
            ratio_of: ratio_of.to_owned(),
            checked_bytes: contestant.checked_bytes,
            window: point.window,
            ranks: self.ranks,
            floor_ns: (self.gate.floor_ns * 10.0).round() / 10.0,
        }
    }

    /// The record of each limit at each point.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitRecord> {
        let mut records = Vec::new();
        for point in &self.points {
            for contestant in &point.contestants {
                if let Subject::Limit(name, huge) = &contestant.who {
                    let three = summaries(&self.gate, &contestant.samples);
                    records.push(LimitRecord {
                        pattern: point.pattern,
                        mode: point.mode,
                        limit: limit_name(name, *huge),
                        size: point.size,
                        near: three.near,
                        far: three.far,
                        all: three.all,
                        refused: contestant.refused.clone(),
                    });
                }
            }
        }
        records
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn contestant(who: Subject, us: &[f64], probe: f64) -> Contestant {
        Contestant {
            who,
            samples: us
                .iter()
                .map(|&us| Sample {
                    us,
                    before_ns: probe,
                    after_ns: probe,
                })
                .collect(),
            checked_bytes: 4096,
            pool_bytes: 0,
            refused: None,
        }
    }

    pub(crate) fn run(probe: f64) -> Run {
        let limit = |name: &str| Subject::Limit(name.to_owned(), false);
        Run {
            gate: Gate::new(60.0),
            ranks: 2,
            missing: Vec::new(),
            points: vec![Point {
                pattern: Pattern::PingPong,
                mode: Mode::Same,
                size: 4096,
                window: 1,
                contestants: vec![
                    contestant(Subject::Mechanism(Mechanism::Cico), &[0.4, 0.6, 0.5], probe),
                    contestant(Subject::Mechanism(Mechanism::Cma), &[3.0], probe),
                    contestant(limit("direct"), &[0.2, 0.3], probe),
                    contestant(limit("direct-rep"), &[0.5], probe),
                    contestant(limit("coop"), &[0.1], probe),
                    contestant(limit("cma-read"), &[2.0], probe),
                ],
            }],
        }
    }

    #[test]
    fn the_ratio_is_to_the_least_limit_of_the_mechanism() {
        let records = run(60.0).records();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].near.median_us, Some(0.5));
        assert_eq!(records[0].near.min_us, Some(0.4));
        assert_eq!(records[0].near.batches, 3);
        assert_eq!(records[0].far, Summary::default());
        assert_eq!(records[0].limit.as_deref(), Some("direct"));
        assert_eq!(records[0].ratio, Some(2.0));
        assert_eq!(records[1].limit.as_deref(), Some("cma-read"));
        assert_eq!(records[1].ratio, Some(1.5));
    }

    #[test]
    fn without_near_batches_the_ratio_is_of_far_ones() {
        let records = run(250.0).records();
        assert_eq!(records[0].near.batches, 0);
        assert_eq!(records[0].ratio_of, "far");
        assert_eq!(records[0].ratio, Some(2.0));
        let dropped = run(2000.0);
        assert_eq!(dropped.records()[0].ratio_of, "all");
        assert_eq!(dropped.states(), [0, 0, 9]);
    }

    #[test]
    fn a_record_has_the_promised_fields() {
        let value = serde_json::to_value(&run(60.0).records()[0]).unwrap();
        for field in [
            "pattern",
            "mode",
            "mechanism",
            "size",
            "limit_us",
            "ratio",
            "checked_bytes",
        ] {
            assert!(value.get(field).is_some(), "{field}");
        }
        for state in ["near", "far"] {
            for field in ["median_us", "min_us", "batches"] {
                assert!(value[state].get(field).is_some(), "{state}.{field}");
            }
        }
        assert_eq!(value["pattern"], "pingpong");
        let back: Record = serde_json::from_value(value).unwrap();
        assert_eq!(back, run(60.0).records()[0]);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Summary::of(vec![1.0, 4.0, 2.0, 3.0]).median_us, Some(2.5));
        assert_eq!(Summary::of(vec![]), Summary::default());
    }
}
