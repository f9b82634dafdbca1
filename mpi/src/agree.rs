// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the members of a communicator must agree on when they make another one, by messages in a context of the
//! library's own.
//!
//! A communicator's identity is a number that its first member chooses: its rank in the job, and a counter. So no two
//! processes ever choose the same number, whatever is under way at the same time.

use crate::comm::{CommObject, Links};
use crate::failure::{Outcome, fail};
use crate::request::Pending;
use crate::{c, comm, phase};
use onecopy::raw::Mode;
use onecopy::{Source, Tag};
use onecopy_shm::sync::{AtomicU32, Ordering};

/// Bits of an identity. A context has one more, to tell the library's messages from the program's. Contexts of 31 and
/// 32 bits are the runtime's.
const BITS: u32 = 29;

/// The identities of `MPI_COMM_WORLD` and `MPI_COMM_SELF` are 0 and 1.
static NEXT: AtomicU32 = AtomicU32::new(2);

/// An identity that nobody else chooses.
pub(crate) fn choose() -> Outcome<u32> {
    let world = comm::world().ok_or_else(phase::not_active)?;
    let rank_bits = (world.size() as u32).next_power_of_two().trailing_zeros();
    let counter_bits = BITS - rank_bits;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    if number >> counter_bits != 0 {
        return Err(fail(
            c::ERR_OTHER,
            "this process has made as many communicators as there are contexts",
        ));
    }
    Ok((world.rank as u32) << counter_bits | number)
}

/// Sends a few bytes to a member.
pub(crate) fn send(
    comm: &CommObject,
    links: &Links,
    to: usize,
    tag: i32,
    bytes: &[u8],
) -> Outcome<()> {
    let to = comm.job_rank(to)?;
    Ok(links.own.send(bytes, to, tag)?)
}

/// Sends a few bytes to a member, without waiting.
pub(crate) fn start_send(
    comm: &CommObject,
    links: &Links,
    to: usize,
    tag: i32,
    bytes: &[u8],
) -> Outcome<Pending> {
    let to = comm.job_rank(to)?;
    Ok(Pending::send_packed(
        &links.own,
        bytes.to_vec(),
        to,
        tag,
        Mode::Standard,
    )?)
}

/// Receives what a member sent, exactly `len` bytes.
pub(crate) fn receive(
    comm: &CommObject,
    links: &Links,
    from: usize,
    tag: i32,
    len: usize,
) -> Outcome<Vec<u8>> {
    let from = comm.job_rank(from)?;
    let mut bytes = vec![0; len];
    links
        .own
        .recv(&mut bytes[..], Source::Rank(from), Tag::Is(tag))?;
    Ok(bytes)
}

/// Everybody gets the first member's bytes, along a binomial tree.
pub(crate) fn broadcast(comm: &CommObject, mine: &[u8]) -> Outcome<Vec<u8>> {
    let links = comm.links()?;
    let tag = comm.next_tag();
    let (rank, size) = (comm.rank, comm.size());
    let mut bytes = mine.to_vec();
    let mut distance = 1;
    while distance < size {
        if rank & distance != 0 {
            bytes = receive(comm, links, rank - distance, tag, mine.len())?;
            break;
        }
        distance <<= 1;
    }
    distance >>= 1;
    while distance > 0 {
        if rank & (distance - 1) == 0 && rank & distance == 0 && rank + distance < size {
            send(comm, links, rank + distance, tag, &bytes)?;
        }
        distance >>= 1;
    }
    Ok(bytes)
}

/// Everybody gets everybody's bytes, in the order of the ranks.
pub(crate) fn allgather(comm: &CommObject, mine: &[u8]) -> Outcome<Vec<u8>> {
    let links = comm.links()?;
    let tag = comm.next_tag();
    let (rank, size, len) = (comm.rank, comm.size(), mine.len());
    let mut all = vec![0; len * size];
    all[rank * len..(rank + 1) * len].copy_from_slice(mine);
    if rank == 0 {
        for from in 1..size {
            let bytes = receive(comm, links, from, tag, len)?;
            all[from * len..(from + 1) * len].copy_from_slice(&bytes);
        }
    } else {
        send(comm, links, 0, tag, mine)?;
    }
    broadcast(comm, &all)
}
