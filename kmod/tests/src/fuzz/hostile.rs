// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands by their number, with a structure that was right until something in it was changed. They go to the right
//! descriptor, to another, or to one that was closed, and the structure is anywhere.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::device;
use crate::mem::{Area, page_size};

use super::super::memory::Called;
use super::super::table::Kind;
use super::super::worker::Worker;
use super::{OBJECTS, keep_grant};

/// What a word of a structure is, before it is changed.
#[derive(Clone, Copy)]
enum Word {
    /// Two numbers of 32 bits: one of these, and one of those.
    Pair(&'static [u32], &'static [u32]),
    /// One of these.
    Of(&'static [u64]),
    /// An address in the arena, and one of what is attached.
    Address,
    View,
    Length,
    Offset,
    Segment,
    Permit,
    Cookie,
    Sent,
    /// A vector, which lies in the structure's own page.
    Vector,
    /// Two descriptors of segments, or -1.
    Descriptors,
}
use Word::{Address, Cookie, Descriptors, Length, Of, Offset, Pair, Permit, Segment, Sent};
use Word::{Vector, View};

/// On which device a command is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostileTarget {
    Xpmem,
    Knem,
    Onecopy,
    Grant,
}

struct Command {
    number: u32,
    on: HostileTarget,
    words: &'static [Word],
}

const ZERO: Word = Of(&[0]);
const NONE: &[u32] = &[0];
const PIECES: &[u32] = &[1, 1, 2, 3];
const COPY_FLAGS: &[u32] = &[0, 0, 8, 0x48, 0x10, 5];
const INDEX: &[u32] = &[0, 1, 7, 8];

macro_rules! commands {
    ($($on:ident $number:expr => $($word:expr),*;)*) => {
        &[$(Command { number: $number, on: HostileTarget::$on, words: &[$($word),*] },)*]
    };
}

const COMMANDS: &[Command] = commands! {
    Xpmem xpmem_sys::XPMEM_CMD_MAKE => Address, Length, Pair(&[1], NONE), Of(&[0o600, 0o666, 0o400]), ZERO;
    Xpmem xpmem_sys::XPMEM_CMD_REMOVE => Segment;
    Xpmem xpmem_sys::XPMEM_CMD_GET => Segment, Pair(&[1, 2, 2], &[1]), ZERO, ZERO;
    Xpmem xpmem_sys::XPMEM_CMD_RELEASE => Permit;
    Xpmem xpmem_sys::XPMEM_CMD_ATTACH => Permit, Offset, Length, Of(&[0, 0, ARENA]), ZERO;
    Xpmem xpmem_sys::XPMEM_CMD_DETACH => View;
    Xpmem xpmem_sys::XPMEM_CMD_FORK_BEGIN => ZERO;
    Onecopy onecopy_sys::ONECOPY_IOC_INFO => Pair(&[64, 56, 8, 128, 4096], NONE), ZERO;
    Onecopy onecopy_sys::ONECOPY_IOC_EXPORT => Pair(&[32, 28], &[0, 1]), Address, Length, ZERO;
    Onecopy onecopy_sys::ONECOPY_IOC_PREFAULT => Pair(&[32], &[0, 1]), View, Length, ZERO;
    Onecopy onecopy_sys::ONECOPY_IOC_COPY => Pair(&[48], NONE), Descriptors, Offset, Address, Length, ZERO;
    Onecopy onecopy_sys::ONECOPY_IOC_STATS => Pair(&[144, 120, 8, 256], NONE), ZERO;
    Grant onecopy_sys::ONECOPY_IOC_SEGMENT_INFO => Pair(&[24, 8, 64], NONE), ZERO, ZERO;
    Grant onecopy_sys::ONECOPY_IOC_RESTRICT => Pair(&[16, 12], &[0, 1]), ZERO;
    Grant onecopy_sys::ONECOPY_IOC_REVOKE => ZERO;
    Knem knem_sys::KNEM_CMD_GET_INFO => ZERO, ZERO;
    Knem knem_sys::KNEM_CMD_BIND_OFFLOAD => Pair(&[1, 2, 4], &[8, 1, 4096]), Vector;
    Knem knem_sys::KNEM_CMD_CREATE_REGION => Vector, Pair(PIECES, &[0, 0x20, 0x80]), Pair(&[1, 3, 2], NONE), ZERO;
    Knem knem_sys::KNEM_CMD_DESTROY_REGION => Cookie;
    Knem knem_sys::KNEM_CMD_COPY => Cookie, Offset, Cookie, Offset, Pair(COPY_FLAGS, NONE), Pair(INDEX, NONE);
    Knem knem_sys::KNEM_CMD_COPY_BOUNDED => Cookie, Offset, Cookie, Offset, Length, Pair(COPY_FLAGS, NONE), Pair(INDEX, NONE);
    Knem knem_sys::KNEM_CMD_INLINE_COPY => Vector, Pair(PIECES, &[0, 1]), Cookie, Offset, Pair(COPY_FLAGS, NONE), Pair(INDEX, NONE);
    Knem knem_sys::KNEM_CMD_INLINE_COPY_BOUNDED => Vector, Pair(PIECES, &[0, 1]), Cookie, Offset, Length, Pair(COPY_FLAGS, NONE), Pair(INDEX, NONE);
    Knem knem_sys::KNEM_CMD_INIT_SEND => Vector, Pair(PIECES, NONE), ZERO;
    Knem knem_sys::KNEM_CMD_INIT_ASYNC_RECV => Vector, Pair(PIECES, INDEX), Sent, Pair(NONE, NONE);
    Knem knem_sys::KNEM_CMD_SYNC_RECV => Vector, Pair(PIECES, NONE), Sent, Pair(NONE, NONE);
};

const ARENA: u64 = super::super::worker::ARENA as u64;
/// The most words that a structure has, and where in its page its vector lies.
const WORDS: usize = 8;
const VECTOR: usize = 1024;
/// Lengths with which an attachment at a place in the arena would reach what the process lives in.
const FAR: std::ops::Range<u64> = 1 << 41..1 << 63;

/// A command, changed or not.
pub(super) fn call(worker: &mut Worker<'_>) -> Called {
    command(worker, Change::Half)
}

/// A command whose structure is wrong: nearly all are refused, and so take little time.
pub(super) fn wrong(worker: &mut Worker<'_>) -> Called {
    command(worker, Change::All)
}

/// Which structures are changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Half of them, in any word of the longest.
    Half,
    /// Each, in a word that the command has.
    All,
}

fn command(worker: &mut Worker<'_>, rate: Change) -> Called {
    let command = pick(worker, rate);
    let (fd, closed) = descriptor(worker, command.on)?;
    // A descriptor that is told where others write cannot be adopted.
    let place = match command.number {
        onecopy_sys::ONECOPY_IOC_EXPORT | onecopy_sys::ONECOPY_IOC_RESTRICT => {
            worker.scratch.base()
        }
        // Finding out that nothing is there takes longer than most calls that are refused.
        _ if rate == Change::All && !worker.dice.once_in(4) => worker.scratch.base(),
        _ => place(worker)?,
    };
    let mut words = [0u64; WORDS];
    for (word, kind) in words.iter_mut().zip(command.words) {
        *word = value(worker, *kind, place);
    }
    match rate {
        Change::Half if worker.dice.once_in(2) => {}
        Change::Half => change(worker, &mut words),
        Change::All => change(worker, &mut words[..command.words.len()]),
    }
    let attaches = command.number == xpmem_sys::XPMEM_CMD_ATTACH;
    if attaches && FAR.contains(&words[2]) {
        words[3] = 0;
    }
    store(place, &words);
    let number = if worker.dice.once_in(24) {
        worker.dice.next() as u32
    } else {
        command.number
    };
    let result = device::any_ioctl(fd, number, place);
    drop(closed);
    Some(result.map(|_| {
        if number == command.number {
            keep(worker, command, place, &words);
        }
    }))
}

/// Any of them. Of the wrong ones it takes none that has nothing to be wrong. It seldom takes one that would end an
/// object after all, or none would live long.
fn pick(worker: &mut Worker<'_>, rate: Change) -> &'static Command {
    loop {
        let at = worker.dice.below(COMMANDS.len() as u64) as usize;
        let command = &COMMANDS[at];
        let empty = command.words.iter().all(|word| matches!(word, Of([0])));
        let ends = matches!(command.words, [Segment | Permit | View | Cookie]);
        if rate == Change::Half || !empty && (!ends || worker.dice.once_in(16)) {
            return command;
        }
    }
}

/// A descriptor to call on: mostly of that kind; or of another, of some file, or of none.
fn descriptor(worker: &mut Worker<'_>, on: HostileTarget) -> Option<(i32, Option<OwnedFd>)> {
    let on = if worker.dice.once_in(16) {
        worker.dice.pick(&[
            HostileTarget::Xpmem,
            HostileTarget::Knem,
            HostileTarget::Onecopy,
            HostileTarget::Grant,
        ])
    } else {
        on
    };
    let fd = match on {
        HostileTarget::Xpmem => worker.xpmem.first()?.device.as_fd(),
        HostileTarget::Knem => worker.knem.first()?.device.as_fd(),
        HostileTarget::Onecopy => worker.onecopy.as_ref()?.as_fd(),
        HostileTarget::Grant => worker.grants.first()?.segment.as_fd(),
    };
    match worker.dice.below(24) {
        // One that was closed just now; the other thread may have got its number.
        0 => {
            let copy = fd.try_clone_to_owned().ok()?;
            Some((copy.as_raw_fd(), None))
        }
        1 => Some((-1, None)),
        2 => Some((worker.file.as_ref()?.as_raw_fd(), None)),
        // The same open file by another number.
        3 => {
            let copy = fd.try_clone_to_owned().ok()?;
            Some((copy.as_raw_fd(), Some(copy)))
        }
        _ => Some((fd.as_raw_fd(), None)),
    }
}

/// Where the structure lies. That is in a page of its own, at the end of one before nothing, or in an attachment. Or it
/// is in the arena, which the other thread changes.
fn place(worker: &mut Worker<'_>) -> Option<usize> {
    let scratch = worker.scratch;
    match worker.dice.below(16) {
        0 => {
            Some(scratch.base() + page_size() - 8 * (1 + worker.dice.below(WORDS as u64) as usize))
        }
        1 => Some(scratch.base() + page_size()),
        2..=3 => Some(worker.small_range().base()),
        4 => {
            let at = worker.dice.index(worker.views.len())?;
            Some(worker.views[at].area.base())
        }
        5 => Some(scratch.base() + 4 * worker.dice.below(8) as usize),
        _ => Some(scratch.base()),
    }
}

fn value(worker: &mut Worker<'_>, kind: Word, place: usize) -> u64 {
    let page = page_size() as u64;
    match kind {
        Pair(low, high) => {
            let (low, high) = (worker.dice.pick(low), worker.dice.pick(high));
            u64::from(high) << 32 | u64::from(low)
        }
        Of(values) => worker.dice.pick(values),
        Address => {
            let range = worker.range();
            range.base() as u64 + worker.dice.pick(&[0, 0, 0, 8, 13])
        }
        View => match worker.dice.index(worker.views.len()) {
            Some(at) => worker.views[at].area.base() as u64,
            None => ARENA,
        },
        Length => worker.dice.pick(&[page, page, 2 * page, 65_536, 8, 100]),
        Offset => worker.dice.pick(&[0, 0, page, 8, 65_536]),
        Segment => match worker.xpmem.first() {
            Some(xpmem) if !xpmem.segids.is_empty() && worker.dice.once_in(3) => {
                xpmem.segids[0] as u64
            }
            _ => worker.name(Kind::Segment).1,
        },
        Permit => {
            let apids = worker.xpmem.first().map(|xpmem| xpmem.apids.len());
            let at = worker.dice.index(apids.unwrap_or(0));
            match (worker.xpmem.first(), at) {
                (Some(xpmem), Some(at)) => xpmem.apids[at].0 as u64,
                _ => worker.dice.next(),
            }
        }
        Cookie => worker.name(Kind::Cookie).1,
        Sent => worker.name(Kind::Sent).1,
        Vector => {
            let vector = place.next_multiple_of(16) + VECTOR;
            let mut pieces = [0; 6];
            for piece in pieces.chunks_exact_mut(2) {
                let range = worker.small_range();
                piece[0] = range.base() as u64;
                piece[1] = worker.dice.pick(&[8, 4096, range.length() as u64]);
            }
            store(vector, &pieces);
            vector as u64
        }
        Descriptors => {
            let mut pair = [u32::MAX; 2];
            for end in &mut pair {
                if let Some(at) = worker.dice.index(worker.grants.len())
                    && worker.dice.once_in(2)
                {
                    *end = worker.grants[at].segment.as_fd().as_raw_fd() as u32;
                }
            }
            u64::from(pair[1]) << 32 | u64::from(pair[0])
        }
    }
}

/// Words in a row. They may lie where nothing is: then the kernel finds that out, and here one fault is enough.
fn store(place: usize, words: &[u64]) {
    for (index, word) in words.iter().enumerate() {
        if crate::probe::store(place + 8 * index, *word).is_err() {
            return;
        }
    }
}

/// Changes one to three words.
fn change(worker: &mut Worker<'_>, words: &mut [u64]) {
    let count = words.len() as u64;
    for _ in 0..=worker.dice.below(3) {
        let at = worker.dice.below(count) as usize;
        words[at] = match worker.dice.below(6) {
            0 => words[at] ^ 1 << worker.dice.below(64),
            1 => words[at] ^ 1 << worker.dice.below(8),
            2 if count > 1 => words[(at + 1 + worker.dice.below(count - 1) as usize) % words.len()],
            3 => worker.dice.next(),
            4 => words[at] & 0xffff_ffff | worker.dice.below(1 << 12) << 32,
            _ => worker.dice.pick(&[
                0,
                1,
                4095,
                u64::MAX,
                1 << 63,
                0xffff_8880_0000_0000,
                0x7fff_ffff_f000,
                u64::from(u32::MAX),
            ]),
        };
    }
}

/// What a call made is kept for others, and bounded.
fn keep(worker: &mut Worker<'_>, command: &Command, place: usize, asked: &[u64; WORDS]) {
    let word = |index: usize| crate::probe::load(place + 8 * index).ok();
    match command.number {
        xpmem_sys::XPMEM_CMD_MAKE => {
            if let (Some(segid), Some(xpmem)) = (word(4), worker.xpmem.first_mut()) {
                xpmem.segids.push(segid as i64);
                if xpmem.segids.len() > OBJECTS {
                    let old = xpmem.segids.swap_remove(0);
                    let _ = xpmem.device.remove(old);
                }
            }
        }
        xpmem_sys::XPMEM_CMD_GET => {
            if let (Some(apid), Some(xpmem)) = (word(3), worker.xpmem.first_mut()) {
                let _ = xpmem.device.release(apid as i64);
            }
        }
        xpmem_sys::XPMEM_CMD_RELEASE => {
            let permit = asked[0] as i64;
            worker.views.retain(|view| view.permit != permit);
            for xpmem in &mut worker.xpmem {
                xpmem.apids.retain(|(apid, _)| *apid != permit);
            }
        }
        // Those addresses may be anything's by now.
        xpmem_sys::XPMEM_CMD_DETACH => worker.views.retain(|view| {
            let range = view.area.base()..view.area.end();
            !range.contains(&(asked[0] as usize))
        }),
        xpmem_sys::XPMEM_CMD_ATTACH if asked[3] == 0 => {
            if let (Some(at), Some(length)) = (word(3), word(2))
                && length < 1 << 30
                && let Some(base) =
                    std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at as usize))
            {
                worker.keep(
                    Area::of(base, length as usize).whole_pages(),
                    asked[0] as i64,
                );
            }
        }
        onecopy_sys::ONECOPY_IOC_EXPORT => adopt(worker, word(3)),
        onecopy_sys::ONECOPY_IOC_RESTRICT => adopt(worker, word(1)),
        knem_sys::KNEM_CMD_CREATE_REGION => remember(worker, word(3)),
        knem_sys::KNEM_CMD_INIT_SEND => remember(worker, word(2)),
        _ => {}
    }
}

fn remember(worker: &mut Worker<'_>, cookie: Option<u64>) {
    if let (Some(cookie), Some(knem)) = (cookie, worker.knem.first_mut()) {
        knem.cookies.push(cookie);
        if knem.cookies.len() > OBJECTS {
            let old = knem.cookies.swap_remove(0);
            let _ = knem.device.destroy_region(old);
        }
    }
}

/// A descriptor that the kernel has just made.
fn adopt(worker: &mut Worker<'_>, word: Option<u64>) {
    if let Some(word) = word
        && word as u32 as i32 > 2
    {
        keep_grant(worker, device::returned(word as u32 as i32), false);
    }
}
