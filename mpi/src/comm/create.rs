// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communicators made from others.

use super::{CommObject, Heritage, Links, forget, get, keep};
use crate::failure::{Outcome, fail};
use crate::ffi::{Comm, Group, Info, Out, Request};
use crate::group::{self, GroupObject};
use crate::request::{self, Activity, Object};
use crate::{agree, attributes, c, info, phase};
use std::sync::Arc;

fn own_rank() -> Outcome<u32> {
    super::world()
        .map(|world| world.rank as u32)
        .ok_or_else(phase::not_active)
}

/// A communicator with a known identity.
pub(crate) fn make(
    parent: &CommObject,
    group: Arc<GroupObject>,
    identity: u32,
    heritage: Heritage,
) -> Outcome<Comm> {
    let heritage = Heritage {
        handler: heritage.handler.or_else(|| Some(parent.handler().share())),
        ..heritage
    };
    let object = CommObject::new(group, heritage)?;
    object.connect(parent.link()?, identity);
    // Now, while all members are here: a first collective that may not wait could not agree.
    object.collectives()?;
    keep(object)
}

fn number(bytes: &[u8]) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[..4]);
    u32::from_ne_bytes(four)
}

/// The identity of a communicator of all members: the first one chooses.
pub(crate) fn agreed(parent: &CommObject) -> Outcome<u32> {
    let mine = if parent.rank == 0 {
        agree::choose()?
    } else {
        0
    };
    Ok(number(&agree::broadcast(parent, &mine.to_ne_bytes())?))
}

pub(crate) fn comm_dup(comm: Comm, new: Out<Comm>) -> Outcome<()> {
    duplicate(comm, None, new)
}

pub(crate) fn comm_dup_with_info(comm: Comm, info: Info, new: Out<Comm>) -> Outcome<()> {
    duplicate(comm, Some(info), new)
}

fn heritage(comm: Comm, info: Option<Info>) -> Outcome<Heritage> {
    let parent = &get(comm)?;
    let pairs = match info {
        Some(info) => info::pairs_or_none(info)?,
        None => phase::lock(&parent.info).clone(),
    };
    let attributes = attributes::copy_all(&parent.attributes, comm.0)?;
    Ok(Heritage {
        handler: Some(parent.handler().share()),
        attributes,
        info: pairs,
        topology: parent.topology.clone(),
    })
}

fn duplicate(comm: Comm, info: Option<Info>, new: Out<Comm>) -> Outcome<()> {
    let parent = &get(comm)?;
    let heritage = heritage(comm, info).inspect_err(|_| new.set_unless_null(c::COMM_NULL))?;
    let identity = agreed(parent)?;
    new.set(make(parent, Arc::clone(&parent.group), identity, heritage)?)
}

pub(crate) fn comm_idup(comm: Comm, new: Out<Comm>, request: Out<Request>) -> Outcome<()> {
    duplicate_later(comm, None, new, request)
}

pub(crate) fn comm_idup_with_info(
    comm: Comm,
    info: Info,
    new: Out<Comm>,
    request: Out<Request>,
) -> Outcome<()> {
    duplicate_later(comm, Some(info), new, request)
}

fn duplicate_later(
    comm: Comm,
    info: Option<Info>,
    new: Out<Comm>,
    request: Out<Request>,
) -> Outcome<()> {
    let parent = &get(comm)?;
    // All that can fail comes first: what is started has a home, and the members a communicator.
    let home = request::reserve(request)?;
    new.check()?;
    let (links, link) = (parent.links()?, parent.link()?);
    let heritage = heritage(comm, info).inspect_err(|_| new.set_unless_null(c::COMM_NULL))?;
    let object = CommObject::new(Arc::clone(&parent.group), heritage)?;
    let handle = keep(Arc::clone(&object))?;
    let tag = parent.next_tag();
    let started = if parent.rank == 0 {
        start_sends(parent, links, tag).map(|(started, identity)| {
            object.connect(link, identity);
            started
        })
    } else {
        request::identity(parent, object, tag)
    };
    match started {
        Ok(started) => {
            home.keep(started);
            new.set(handle)
        }
        Err(failure) => {
            forget(handle);
            Err(failure)
        }
    }
}

/// Chooses the identity of a duplicate and sends it to all members, without waiting. One that cannot be reached keeps
/// it from no other.
fn start_sends(parent: &Arc<CommObject>, links: &Links, tag: i32) -> Outcome<(Object, u32)> {
    let identity = agree::choose()?;
    let mut messages = Vec::with_capacity(parent.size());
    let mut failure = None;
    for to in 1..parent.size() {
        match agree::start_send(parent, links, to, tag, &identity.to_ne_bytes()) {
            Ok(message) => messages.push(message),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let mut object = Object::active(parent, Activity::Many(messages));
    object.failure = failure;
    Ok((object, identity))
}

pub(crate) fn comm_split(comm: Comm, color: i32, key: i32, new: Out<Comm>) -> Outcome<()> {
    if color < 0 && color != c::UNDEFINED {
        return Err(fail(c::ERR_ARG, format!("color {color} is below zero")));
    }
    new.set(split(comm, color, key)?)
}

fn split(comm: Comm, color: i32, key: i32) -> Outcome<Comm> {
    let parent = &get(comm)?;
    let mut mine = Vec::with_capacity(12);
    mine.extend(color.to_ne_bytes());
    mine.extend(key.to_ne_bytes());
    mine.extend(agree::choose()?.to_ne_bytes());
    let all = agree::allgather(parent, &mine)?;
    if color == c::UNDEFINED {
        return Ok(c::COMM_NULL);
    }
    let mut members: Vec<(i32, usize, u32)> = all
        .chunks_exact(12)
        .enumerate()
        .filter(|(_, entry)| number(entry) as i32 == color)
        .map(|(rank, entry)| (number(&entry[4..]) as i32, rank, number(&entry[8..])))
        .collect();
    members.sort_unstable_by_key(|&(key, rank, _)| (key, rank));
    let ranks = members
        .iter()
        .map(|&(_, rank, _)| parent.job_rank(rank).map(|rank| rank as u32))
        .collect::<Outcome<Vec<u32>>>()?;
    let identity = members.first().map_or(0, |&(.., identity)| identity);
    let group = Arc::new(GroupObject::new(ranks, own_rank()?));
    make(parent, group, identity, Heritage::default())
}

/// This rank's node, as a color: ranks of one node share memory.
fn node() -> Outcome<i32> {
    Ok(phase::engine()?.node() as i32)
}

pub(crate) fn comm_split_type(
    comm: Comm,
    kind: i32,
    key: i32,
    info: Info,
    new: Out<Comm>,
) -> Outcome<()> {
    let hints = info::pairs_or_none(info)?;
    let by_memory = hints
        .iter()
        .any(|(key, value)| key == b"mpi_hw_resource_type" && value == b"mpi_shared_memory");
    let color = match kind {
        c::COMM_TYPE_SHARED => node()?,
        c::COMM_TYPE_HW_GUIDED | c::COMM_TYPE_RESOURCE_GUIDED if by_memory => node()?,
        // No other kind of hardware is distinguished.
        c::UNDEFINED
        | c::COMM_TYPE_HW_GUIDED
        | c::COMM_TYPE_HW_UNGUIDED
        | c::COMM_TYPE_RESOURCE_GUIDED => c::UNDEFINED,
        _ => {
            return Err(fail(c::ERR_ARG, format!("{kind} is no type to split by")));
        }
    };
    new.set(split(comm, color, key)?)
}

pub(crate) fn comm_create(comm: Comm, group: Group, new: Out<Comm>) -> Outcome<()> {
    let parent = &get(comm)?;
    let group = group::get(group)?;
    check_subset(parent, &group)?;
    let all = agree::allgather(parent, &agree::choose()?.to_ne_bytes())?;
    let first = group.rank(0).map(|rank| parent.rank_of(rank) as usize);
    match (group.me(), first) {
        (Some(_), Some(first)) => {
            let identity = number(&all[first * 4..]);
            new.set(make(parent, group, identity, Heritage::default())?)
        }
        _ => new.set(c::COMM_NULL),
    }
}

fn check_subset(parent: &CommObject, group: &GroupObject) -> Outcome<()> {
    let inside = |&rank: &u32| parent.group.place(rank as usize).is_some();
    if group.ranks().iter().all(inside) {
        Ok(())
    } else {
        Err(fail(
            c::ERR_GROUP,
            "the group has members that the communicator has not",
        ))
    }
}

/// Tags of communicators that only a part of the members makes, apart from those that all make.
const PARTIAL: i32 = 1 << 30;

pub(crate) fn comm_create_group(comm: Comm, group: Group, tag: i32, new: Out<Comm>) -> Outcome<()> {
    let parent = &get(comm)?;
    let group = group::get(group)?;
    check_subset(parent, &group)?;
    let Some(me) = group.me() else {
        return new.set(c::COMM_NULL);
    };
    if tag < 0 {
        return Err(fail(c::ERR_TAG, format!("tag {tag} is below zero")));
    }
    let tag = PARTIAL | (tag & (PARTIAL - 1));
    let links = parent.links()?;
    let rank_in_parent = |place: usize| {
        let rank = group.rank(place).unwrap_or(0);
        parent.rank_of(rank) as usize
    };
    let identity = if me == 0 {
        let identity = agree::choose()?;
        for place in 1..group.size() {
            agree::send(
                parent,
                links,
                rank_in_parent(place),
                tag,
                &identity.to_ne_bytes(),
            )?;
        }
        identity
    } else {
        number(&agree::receive(parent, links, rank_in_parent(0), tag, 4)?)
    };
    new.set(make(parent, group, identity, Heritage::default())?)
}
