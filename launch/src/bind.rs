// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which rank runs on which processor.

use std::str::FromStr;

use nix::sched::CpuSet;

/// How ranks are bound to processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// One processor per rank if there are enough, otherwise not at all.
    #[default]
    Auto,
    /// Rank r to the r-th processor of the launcher's own mask, from the first again when there are more ranks.
    Core,
    /// Every rank may use all processors of the launcher.
    None,
    /// Rank r to the r-th processor of this list, from the first again when there are more ranks.
    List(Vec<u16>),
}

/// Why a binding cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Not a binding.
    #[error(
        "bind: {text:?} is neither core, none nor a list of processors such as 0,2 or 0-3: {reason}"
    )]
    Syntax {
        /// What was given.
        text: String,
        /// The part that is wrong.
        reason: String,
    },
    /// A processor that is not ours.
    #[error("bind: processor {processor} is not available here; available: {available}")]
    NotAvailable {
        /// The processor.
        processor: u16,
        /// Those that are.
        available: String,
    },
}

impl FromStr for Bind {
    type Err = BindError;

    fn from_str(text: &str) -> Result<Self, BindError> {
        match text {
            "auto" => Ok(Self::Auto),
            "core" => Ok(Self::Core),
            "none" => Ok(Self::None),
            list => parse_list(list).map(Self::List),
        }
    }
}

fn parse_list(text: &str) -> Result<Vec<u16>, BindError> {
    let wrong = |reason: String| BindError::Syntax {
        text: text.to_owned(),
        reason,
    };
    let number = |part: &str| {
        let value: Result<u16, _> = part.trim().parse();
        match value {
            Ok(value) if usize::from(value) < CpuSet::count() => Ok(value),
            Ok(value) => Err(wrong(format!("there is no processor {value}"))),
            Err(_) => Err(wrong(format!("{part:?} is not a number"))),
        }
    };
    let mut list = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => list.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(wrong(format!("{part:?} runs backwards")));
                }
                list.extend(first..=last);
            }
        }
    }
    Ok(list)
}

/// One mask per rank; none for a rank that is not bound. `own` are the launcher's processors.
pub(super) fn plan(
    bind: &Bind,
    ranks: usize,
    own: &[u16],
) -> Result<Vec<Option<CpuSet>>, BindError> {
    let list: &[u16] = match bind {
        Bind::Auto if ranks <= own.len() => own,
        Bind::Auto | Bind::None => &[],
        Bind::Core => own,
        Bind::List(list) => list,
    };
    // An unknown own mask cannot refuse anything: the kernel will.
    if let Some(&processor) = list
        .iter()
        .find(|cpu| !own.is_empty() && !own.contains(cpu))
    {
        return Err(BindError::NotAvailable {
            processor,
            available: show(own),
        });
    }
    Ok((0..ranks)
        .map(|rank| {
            let cpu = *list.get(rank % list.len().max(1))?;
            let mut set = CpuSet::new();
            set.set(cpu.into()).ok().map(|()| set)
        })
        .collect())
}

/// Ascending processors as people write them: `0-3,8`.
fn show(processors: &[u16]) -> String {
    let mut parts: Vec<(u16, u16)> = Vec::new();
    for &cpu in processors {
        match parts.last_mut() {
            Some((_, last)) if u32::from(*last) + 1 == u32::from(cpu) => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let text: Vec<String> = parts
        .iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    text.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(bind: &str, ranks: usize, own: &[u16]) -> Vec<Vec<usize>> {
        let bind: Bind = bind.parse().expect("bind");
        let plan = plan(&bind, ranks, own).expect("plan");
        let cpus = |set: CpuSet| {
            (0..CpuSet::count())
                .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
                .collect()
        };
        plan.into_iter()
            .map(|set| set.map_or(Vec::new(), cpus))
            .collect()
    }

    #[test]
    fn ranks_are_placed_in_turn() {
        assert_eq!(planned("core", 3, &[2, 5]), [[2], [5], [2]]);
        assert_eq!(planned("5,2-3", 4, &[2, 3, 5]), [[5], [2], [3], [5]]);
        assert_eq!(planned("none", 2, &[2, 5]), [[0; 0]; 2]);
        assert_eq!(planned("auto", 2, &[2, 5]), [[2], [5]]);
        assert_eq!(planned("auto", 3, &[2, 5]), [[0; 0]; 3]);
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        for bad in ["", "x", "1,,2", "3-1", "-1", "99999", "2000"] {
            let error = bad.parse::<Bind>().expect_err(bad);
            assert!(matches!(error, BindError::Syntax { .. }), "{error}");
        }
        let error = plan(&Bind::List(vec![1, 7]), 1, &[0, 1, 2, 5]).expect_err("7");
        let text = error.to_string();
        assert!(text.contains("processor 7"), "{text}");
        assert!(text.contains("0-2,5"), "{text}");
    }
}
