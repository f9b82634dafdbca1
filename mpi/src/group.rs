// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups: ordered sets of the job's ranks.

use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Group, In, Out};
use crate::handle::Table;
use crate::{c, phase};
use std::sync::Arc;

/// An ordered set of ranks of the job.
#[derive(Debug)]
pub(crate) struct GroupObject {
    ranks: Vec<u32>,
    /// The place of each rank of the job, or `NONE`.
    places: Vec<u32>,
    /// This process's place.
    me: Option<usize>,
    /// Every rank is its own place.
    identity: bool,
}

const NONE: u32 = u32::MAX;

impl GroupObject {
    pub(crate) fn new(ranks: Vec<u32>, own: u32) -> Self {
        let top = ranks.iter().max().map_or(0, |&rank| rank as usize + 1);
        let mut places = vec![NONE; top];
        for (place, &rank) in ranks.iter().enumerate() {
            places[rank as usize] = place as u32;
        }
        let identity = ranks
            .iter()
            .enumerate()
            .all(|(place, &rank)| place as u32 == rank);
        let me = places.get(own as usize).filter(|&&place| place != NONE);
        Self {
            me: me.map(|&place| place as usize),
            ranks,
            places,
            identity,
        }
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This process's place.
    #[inline]
    pub(crate) fn me(&self) -> Option<usize> {
        self.me
    }

    /// The rank in the job of a place.
    #[inline(always)]
    pub(crate) fn rank(&self, place: usize) -> Option<usize> {
        if self.identity {
            (place < self.ranks.len()).then_some(place)
        } else {
            self.ranks.get(place).map(|&rank| rank as usize)
        }
    }

    /// The place of a rank of the job.
    #[inline(always)]
    pub(crate) fn place(&self, rank: usize) -> Option<usize> {
        self.places
            .get(rank)
            .filter(|&&place| place != NONE)
            .map(|&place| place as usize)
    }

    pub(crate) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    fn contains(&self, rank: u32) -> bool {
        self.place(rank as usize).is_some()
    }

    /// How two groups compare.
    pub(crate) fn compare(&self, other: &Self) -> i32 {
        if self.ranks == other.ranks {
            c::IDENT
        } else if self.size() == other.size() && self.ranks.iter().all(|&rank| other.contains(rank))
        {
            c::SIMILAR
        } else {
            c::UNEQUAL
        }
    }
}

static GROUPS: Table<Arc<GroupObject>> = Table::new(3);

fn own_rank() -> Outcome<u32> {
    Ok(phase::engine()?.rank() as u32)
}

/// The object of a handle.
pub(crate) fn get(handle: Group) -> Outcome<Arc<GroupObject>> {
    if handle == c::GROUP_EMPTY {
        return Ok(Arc::new(GroupObject::new(Vec::new(), own_rank()?)));
    }
    GROUPS
        .get(handle.0)
        .cloned()
        .ok_or_else(|| bad_group(handle))
}

fn bad_group(handle: Group) -> Box<Failure> {
    let what = if handle == c::GROUP_NULL {
        "MPI_GROUP_NULL was given".to_owned()
    } else {
        format!("{:#x} is no group", handle.0)
    };
    fail(c::ERR_GROUP, what)
}

/// A handle for a group.
pub(crate) fn keep(group: Arc<GroupObject>) -> Outcome<Group> {
    if group.size() == 0 {
        return Ok(c::GROUP_EMPTY);
    }
    GROUPS.insert(group).map(Group).ok_or_else(phase::too_many)
}

fn keep_ranks(ranks: Vec<u32>) -> Outcome<Group> {
    keep(Arc::new(GroupObject::new(ranks, own_rank()?)))
}

pub(crate) fn group_size(group: Group, size: Out<i32>) -> Outcome<()> {
    size.set(get(group)?.size() as i32)
}

pub(crate) fn group_rank(group: Group, rank: Out<i32>) -> Outcome<()> {
    rank.set(get(group)?.me().map_or(c::UNDEFINED, |place| place as i32))
}

pub(crate) fn group_free(group: Out<Group>) -> Outcome<()> {
    let handle = group.get()?;
    if handle != c::GROUP_EMPTY {
        GROUPS.remove(handle.0).ok_or_else(|| bad_group(handle))?;
    }
    group.set(c::GROUP_NULL)
}

pub(crate) fn group_compare(a: Group, b: Group, result: Out<i32>) -> Outcome<()> {
    result.set(get(a)?.compare(&*get(b)?))
}

pub(crate) fn group_translate_ranks(
    a: Group,
    n: i32,
    ranks: In<i32>,
    b: Group,
    out: Out<i32>,
) -> Outcome<()> {
    let (a, b) = (get(a)?, get(b)?);
    for (index, place) in ranks.list(count(n)?)?.into_iter().enumerate() {
        if place == c::PROC_NULL {
            out.set_at(index, c::PROC_NULL)?;
            continue;
        }
        let rank = usize::try_from(place)
            .ok()
            .and_then(|place| a.rank(place))
            .ok_or_else(|| bad_rank(place, a.size()))?;
        out.set_at(
            index,
            b.place(rank).map_or(c::UNDEFINED, |place| place as i32),
        )?;
    }
    Ok(())
}

fn bad_rank(rank: i32, size: usize) -> Box<Failure> {
    fail(
        c::ERR_RANK,
        format!("rank {rank} is not in a group of {size}"),
    )
}

fn count(n: i32) -> Outcome<usize> {
    usize::try_from(n).map_err(|_| fail(c::ERR_ARG, format!("{n} ranks")))
}

pub(crate) fn group_union(a: Group, b: Group, new: Out<Group>) -> Outcome<()> {
    let (a, b) = (get(a)?, get(b)?);
    let more = b.ranks.iter().filter(|&&rank| !a.contains(rank));
    new.set(keep_ranks(a.ranks.iter().chain(more).copied().collect())?)
}

pub(crate) fn group_intersection(a: Group, b: Group, new: Out<Group>) -> Outcome<()> {
    let (a, b) = (get(a)?, get(b)?);
    let both = a.ranks.iter().filter(|&&rank| b.contains(rank));
    new.set(keep_ranks(both.copied().collect())?)
}

pub(crate) fn group_difference(a: Group, b: Group, new: Out<Group>) -> Outcome<()> {
    let (a, b) = (get(a)?, get(b)?);
    let rest = a.ranks.iter().filter(|&&rank| !b.contains(rank));
    new.set(keep_ranks(rest.copied().collect())?)
}

/// The ranks of the job at `places`, each of which must be there once.
fn select(group: &GroupObject, places: &[i32]) -> Outcome<Vec<u32>> {
    let mut seen = vec![false; group.size()];
    places
        .iter()
        .map(|&place| {
            let index = usize::try_from(place)
                .ok()
                .filter(|&index| index < group.size());
            let index = index.ok_or_else(|| bad_rank(place, group.size()))?;
            if std::mem::replace(&mut seen[index], true) {
                return Err(fail(c::ERR_RANK, format!("rank {place} is named twice")));
            }
            Ok(group.ranks[index])
        })
        .collect()
}

fn without(group: &GroupObject, places: &[i32]) -> Outcome<Vec<u32>> {
    let gone = select(group, places)?;
    let kept = group.ranks.iter().filter(|rank| !gone.contains(rank));
    Ok(kept.copied().collect())
}

pub(crate) fn group_incl(group: Group, n: i32, ranks: In<i32>, new: Out<Group>) -> Outcome<()> {
    let ranks = ranks.list(count(n)?)?;
    new.set(keep_ranks(select(&*get(group)?, &ranks)?)?)
}

pub(crate) fn group_excl(group: Group, n: i32, ranks: In<i32>, new: Out<Group>) -> Outcome<()> {
    let ranks = ranks.list(count(n)?)?;
    new.set(keep_ranks(without(&*get(group)?, &ranks)?)?)
}

/// The places that triplets of first, last and stride name.
fn expand(n: i32, ranges: In<i32>, size: usize) -> Outcome<Vec<i32>> {
    let numbers = ranges.list(count(n)? * 3)?;
    let mut places = Vec::new();
    for triplet in numbers.chunks_exact(3) {
        let (first, last, stride) = (triplet[0], triplet[1], triplet[2]);
        let away = if stride > 0 {
            first > last
        } else {
            first < last
        };
        if stride == 0 || away {
            return Err(fail(
                c::ERR_ARG,
                format!("a range from {first} to {last} with stride {stride}"),
            ));
        }
        let mut place = first;
        while if stride > 0 {
            place <= last
        } else {
            place >= last
        } {
            // The last one need not be met, and need not be a rank then.
            if usize::try_from(place)
                .ok()
                .is_none_or(|index| index >= size)
            {
                return Err(bad_rank(place, size));
            }
            places.push(place);
            let Some(next) = place.checked_add(stride) else {
                break;
            };
            place = next;
        }
    }
    Ok(places)
}

pub(crate) fn group_range_incl(
    group: Group,
    n: i32,
    ranges: In<i32>,
    new: Out<Group>,
) -> Outcome<()> {
    let object = get(group)?;
    let places = expand(n, ranges, object.size())?;
    new.set(keep_ranks(select(&object, &places)?)?)
}

pub(crate) fn group_range_excl(
    group: Group,
    n: i32,
    ranges: In<i32>,
    new: Out<Group>,
) -> Outcome<()> {
    let object = get(group)?;
    let places = expand(n, ranges, object.size())?;
    new.set(keep_ranks(without(&object, &places)?)?)
}
