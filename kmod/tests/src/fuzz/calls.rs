// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls: which there are, how often each is made, and the ones on /dev/xpmem and /dev/onecopy.

use std::io;
use std::os::fd::AsFd;

use onecopy_sys::{CopyEnd, ONECOPY_MMAP_GENERATION, ONECOPY_WHOLE, Segment};
use xpmem_sys::{XPMEM_MAXADDR_SIZE, XPMEM_RDONLY, XPMEM_RDWR};

use crate::device;
use crate::mem::{self, READ, WRITE, page_size};
use crate::peer::{receive, send};

use super::memory::{self, Called};
use super::table::Kind;
use super::worker::{ARENA, ARENA_SIZE, Grant, Worker, Xpmem};

#[path = "hostile.rs"]
mod hostile;
#[path = "regions.rs"]
mod regions;

/// A call: what it does, how often it is made, and whether it is one on a device.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) weight: u64,
    pub(super) device: bool,
    pub(super) run: fn(&mut Worker<'_>) -> Called,
}

macro_rules! calls {
    ($($device:literal $weight:literal $name:literal $run:path;)*) => {
        &[$(Call { name: $name, weight: $weight, device: $device, run: $run },)*]
    };
}

/// All calls.
pub(super) const CALLS: &[Call] = calls! {
    true 6 "xpmem open" xpmem_open;
    true 3 "xpmem close" xpmem_close;
    true 3 "xpmem VERSION" xpmem_version;
    true 24 "xpmem MAKE" xpmem_make;
    true 8 "xpmem REMOVE" xpmem_remove;
    true 40 "xpmem GET" xpmem_get;
    true 12 "xpmem RELEASE" xpmem_release;
    true 50 "xpmem ATTACH" xpmem_attach;
    true 20 "xpmem DETACH" xpmem_detach;
    true 5 "xpmem raw command" xpmem_raw;
    true 160 "any command, changed" hostile::call;
    true 12000 "any command, wrong" hostile::wrong;
    true 6 "onecopy open" onecopy_open;
    true 2 "onecopy close" onecopy_close;
    true 5 "onecopy INFO, STATS" onecopy_info;
    true 30 "onecopy EXPORT" onecopy_export;
    true 50 "onecopy mmap" onecopy_map;
    true 10 "onecopy mmap generation" onecopy_generation;
    true 40 "onecopy PREFAULT" onecopy_prefault;
    true 50 "onecopy COPY" onecopy_copy;
    true 8 "onecopy SEGMENT_INFO" onecopy_segment_info;
    true 10 "onecopy RESTRICT" onecopy_restrict;
    true 4 "onecopy REVOKE" onecopy_revoke;
    true 10 "onecopy close segment" onecopy_close_segment;
    true 8 "pass a descriptor" pass;
    true 8 "take a descriptor" take;
    true 6 "knem open" regions::open;
    true 3 "knem close" regions::close;
    true 3 "knem GET_INFO" regions::info;
    true 4 "knem BIND_OFFLOAD" regions::bind;
    true 6 "knem mmap" regions::map_status;
    true 30 "knem CREATE_REGION" regions::create;
    true 12 "knem DESTROY_REGION" regions::destroy;
    true 30 "knem COPY" regions::copy;
    true 30 "knem COPY_BOUNDED" regions::copy_bounded;
    true 25 "knem INLINE_COPY" regions::inline;
    true 40 "knem INLINE_COPY_BOUNDED" regions::inline_bounded;
    true 10 "knem INIT_SEND" regions::init_send;
    true 8 "knem SYNC_RECV" regions::sync_recv;
    true 8 "knem INIT_ASYNC_RECV" regions::async_recv;
    true 10 "knem read" regions::read;
    false 60 "access an attachment" memory::touch_view;
    false 12 "system call on an attachment" memory::syscall_on_view;
    false 20 "munmap an attachment" memory::unmap_view;
    false 6 "mprotect an attachment" memory::protect_view;
    false 4 "mremap an attachment" memory::remap_view;
    false 30 "mmap" memory::map;
    false 6 "mmap a file" memory::map_file;
    false 12 "munmap" memory::unmap;
    false 12 "mprotect" memory::protect;
    false 6 "mremap" memory::remap;
    false 12 "madvise" memory::advise;
    false 20 "access own memory" memory::touch;
    false 1 "userfaultfd" memory::block;
    false 3 "close userfaultfd" memory::unblock;
    false 2 "fork" memory::fork;
    false 1 "exit, exec" memory::end;
};

/// How many devices of a kind a thread has open at most, and how many segments, grants or regions of each. Every change
/// of a process's memory is told to every segment that covers it: few, or the kernel does little else.
const DEVICES: usize = 2;
const OBJECTS: usize = 6;

fn xpmem_open(worker: &mut Worker<'_>) -> Called {
    if worker.xpmem.len() >= DEVICES {
        return None;
    }
    Some(xpmem_sys::Device::open().map(|device| {
        worker.xpmem.push(Xpmem {
            device,
            segids: Vec::new(),
            apids: Vec::new(),
        });
    }))
}

fn xpmem_close(worker: &mut Worker<'_>) -> Called {
    if worker.dice.once_in(8) {
        let index = worker.dice.index(worker.xpmem.len())?;
        drop(worker.xpmem.swap_remove(index));
        return Some(Ok(()));
    }
    None
}

fn xpmem_version(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.xpmem.len())?;
    Some(worker.xpmem[index].device.version().map(|_| ()))
}

fn xpmem_make(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.xpmem.len())?;
    let whole = worker.dice.once_in(8);
    let range = worker.range();
    let (address, size) = if whole {
        (0, XPMEM_MAXADDR_SIZE)
    } else {
        (
            worker.dice.bend(range.base() as u64),
            worker.dice.bend(range.length() as u64),
        )
    };
    let mode = worker
        .dice
        .pick(&[0o600, 0o600, 0o600, 0o666, 0o400, 0o000, 0o7777]);
    let xpmem = &mut worker.xpmem[index];
    let made = device::try_make(&xpmem.device, address as usize, size, mode);
    Some(made.map(|segid| {
        xpmem.segids.push(segid);
        let kind = if whole { Kind::Whole } else { Kind::Segment };
        let at = worker.dice.next();
        worker.table.notes.offer(kind, at, segid as u64);
        if xpmem.segids.len() > OBJECTS {
            let old = xpmem.segids.swap_remove(0);
            let _ = xpmem.device.remove(old);
        }
    }))
}

fn xpmem_remove(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.xpmem.len())?;
    let xpmem = &mut worker.xpmem[index];
    let segid = match worker.dice.index(xpmem.segids.len()) {
        Some(at) if !worker.dice.once_in(6) => xpmem.segids.swap_remove(at),
        _ => worker
            .table
            .notes
            .name_at(Kind::Segment, worker.dice.next()) as i64,
    };
    Some(xpmem.device.remove(segid))
}

fn xpmem_get(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.xpmem.len())?;
    let whole = worker.dice.once_in(4);
    let kind = if whole { Kind::Whole } else { Kind::Segment };
    let (at, name) = worker.name(kind);
    let segid = worker.dice.bend(name) as i64;
    let flags = worker.dice.pick(&[XPMEM_RDWR, XPMEM_RDWR, XPMEM_RDONLY]);
    let flags = worker.dice.bend_flags(flags as u32) as i32;
    let xpmem = &mut worker.xpmem[index];
    let got = xpmem.device.get(segid, flags);
    if got
        .as_ref()
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    {
        worker.table.notes.offer(kind, at, 0);
    }
    Some(got.map(|apid| {
        xpmem.apids.push((apid, whole));
        if xpmem.apids.len() > 2 * OBJECTS {
            let (old, _) = xpmem.apids.swap_remove(0);
            let _ = xpmem.device.release(old);
            worker.views.retain(|view| view.permit != old);
        }
    }))
}

fn xpmem_release(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.xpmem.len())?;
    let xpmem = &mut worker.xpmem[index];
    let at = worker.dice.index(xpmem.apids.len())?;
    let (apid, _) = xpmem.apids.swap_remove(at);
    let id = worker.dice.bend(apid as u64) as i64;
    let released = xpmem.device.release(id);
    // What was attached through it is gone: those addresses may be anything's by now.
    worker.views.retain(|view| view.permit != apid);
    Some(released)
}

fn xpmem_attach(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.xpmem.len())?;
    let at = worker.dice.index(worker.xpmem[index].apids.len())?;
    let (apid, whole) = worker.xpmem[index].apids[at];
    // Most segments begin somewhere in an arena and have a few pages.
    let pages = worker.dice.pick(&[1u64, 1, 2, 3, 7, 16]);
    let pages = if worker.dice.once_in(32) { 512 } else { pages };
    let first = if worker.dice.once_in(2) {
        0
    } else {
        worker.dice.below(8)
    };
    let place = if whole {
        ARENA as u64
            + worker.dice.below((ARENA_SIZE / page_size()) as u64 - pages) * page_size() as u64
    } else {
        first * page_size() as u64
    };
    let offset = worker.dice.bend(place);
    let size = worker.dice.bend(pages * page_size() as u64);
    let over = if worker.dice.once_in(8) {
        Some(worker.small_range())
    } else {
        None
    };
    let device = &worker.xpmem[index].device;
    let attached = match over {
        Some(over) => device::attach_over(device, apid, offset as usize, &over),
        None => device::try_attach(device, apid, offset as i64, size),
    };
    Some(attached.map(|area| {
        // What lies in the arena is replaced by later calls like everything there.
        if over.is_none() {
            worker.keep(area, apid);
        }
    }))
}

fn xpmem_detach(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.xpmem.len())?;
    if worker.dice.once_in(6) {
        let range = worker.small_range();
        return Some(device::detach(&worker.xpmem[index].device, &range));
    }
    let at = worker.dice.index(worker.views.len())?;
    let view = worker.views.swap_remove(at);
    let page = worker.dice.below(view.area.pages().max(1) as u64) as usize;
    let part = view
        .area
        .part(page * page_size(), 8.min(view.area.length()));
    let detached = device::detach(&worker.xpmem[index].device, &part);
    if detached.is_err() {
        let _ = view.area.unmap();
    }
    Some(detached)
}

/// Any command with a pointer to nothing, or to a page of anything.
fn xpmem_raw(worker: &mut Worker<'_>) -> Called {
    use std::os::fd::AsRawFd;
    let number = worker.dice.below(12);
    let fd = match worker.dice.below(3) {
        0 => worker.xpmem.first()?.device.as_fd().as_raw_fd(),
        1 => worker.knem.first()?.device.as_fd().as_raw_fd(),
        _ => worker.onecopy.as_ref()?.as_fd().as_raw_fd(),
    };
    let command = worker.dice.pick(&[
        u64::from(xpmem_sys::XPMEM_IOC_MAGIC) << 8 | number,
        0xC100 | number,
        0xC110 | number,
        u64::from(knem_sys::KNEM_CMD_GET_INFO),
        u64::from(xpmem_sys::XPMEM_CMD_FORK_BEGIN),
    ]);
    Some(device::raw_ioctl(fd, command, 8).map(|_| ()))
}

fn onecopy_open(worker: &mut Worker<'_>) -> Called {
    if worker.onecopy.is_some() {
        return None;
    }
    Some(onecopy_sys::Device::open().map(|device| worker.onecopy = Some(device)))
}

fn onecopy_close(worker: &mut Worker<'_>) -> Called {
    worker.onecopy.take().map(|_| Ok(()))
}

fn onecopy_info(worker: &mut Worker<'_>) -> Called {
    let device = worker.onecopy.as_ref()?;
    Some(if worker.dice.once_in(2) {
        device.info().map(|_| ())
    } else {
        device.stats().map(|_| ())
    })
}

fn onecopy_export(worker: &mut Worker<'_>) -> Called {
    let whole = worker.dice.once_in(8);
    let range = worker.range();
    let (address, length) = if whole {
        (0, ONECOPY_WHOLE)
    } else {
        (
            worker.dice.bend(range.base() as u64),
            worker.dice.bend(range.length() as u64),
        )
    };
    let write = !worker.dice.once_in(3);
    let exported = device::export_on(worker.onecopy.as_ref()?, address as usize, length, write);
    Some(exported.map(|segment| keep_grant(worker, segment, whole)))
}

fn keep_grant(worker: &mut Worker<'_>, segment: Segment, whole: bool) {
    worker.grants.push(Grant { segment, whole });
    if worker.grants.len() > 2 * OBJECTS {
        drop(worker.grants.swap_remove(0));
    }
}

/// A place in a segment that is likely to exist.
fn place(worker: &mut Worker<'_>, whole: bool) -> u64 {
    let page = page_size() as u64;
    if whole {
        ARENA as u64 + worker.dice.below(ARENA_SIZE as u64 / page) * page
    } else if worker.dice.once_in(2) {
        0
    } else {
        worker.dice.below(8) * page
    }
}

fn onecopy_map(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.grants.len())?;
    let whole = worker.grants[index].whole;
    let offset = place(worker, whole);
    let offset = worker.dice.bend(offset);
    let pages = worker.dice.pick(&[1u64, 1, 2, 3, 7, 16]);
    let length = if worker.dice.once_in(32) { 512 } else { pages } * page_size() as u64;
    let length = worker.dice.bend(length).min(1 << 44);
    let write = worker.dice.once_in(2);
    let kind = if worker.dice.once_in(12) {
        libc::MAP_PRIVATE
    } else {
        libc::MAP_SHARED
    };
    let populate = if worker.dice.once_in(12) {
        libc::MAP_POPULATE
    } else {
        0
    };
    let protection = if write { READ | WRITE } else { READ };
    let fd = worker.grants[index].segment.as_fd();
    let mapped = mem::try_map(
        0,
        length as usize,
        protection,
        kind | populate,
        Some(fd),
        offset as i64,
    );
    Some(mapped.map(|area| worker.keep(area.whole_pages(), -1)))
}

fn onecopy_generation(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.grants.len())?;
    let length = worker.dice.bend(page_size() as u64).min(1 << 44);
    let protection = if worker.dice.once_in(8) {
        READ | WRITE
    } else {
        READ
    };
    let fd = worker.grants[index].segment.as_fd();
    let offset = ONECOPY_MMAP_GENERATION as i64;
    let mapped = mem::try_map(
        0,
        length as usize,
        protection,
        libc::MAP_SHARED,
        Some(fd),
        offset,
    );
    Some(mapped.map(|area| worker.keep(area.whole_pages(), -1)))
}

fn onecopy_prefault(worker: &mut Worker<'_>) -> Called {
    let area = match worker.dice.index(worker.views.len()) {
        Some(index) if !worker.dice.once_in(8) => worker.views[index].area,
        _ => worker.small_range(),
    };
    let address = worker.dice.bend(area.base() as u64) as usize;
    let length = worker.dice.bend(area.length() as u64);
    let write = worker.dice.once_in(2);
    Some(
        worker
            .onecopy
            .as_ref()?
            .prefault(address, length, write)
            .result,
    )
}

fn onecopy_copy(worker: &mut Worker<'_>) -> Called {
    let device = worker.onecopy.take()?;
    let mut ends = [None, None];
    for end in &mut ends {
        *end = match worker.dice.index(worker.grants.len()) {
            Some(index) if !worker.dice.once_in(3) => {
                let whole = worker.grants[index].whole;
                let offset = place(worker, whole) + worker.dice.pick(&[0u64, 0, 8, 13, 4095]);
                Some((Some(index), worker.dice.bend(offset)))
            }
            _ => {
                let range = worker.range();
                let address = range.base() as u64 + worker.dice.pick(&[0u64, 0, 8, 13, 4095]);
                Some((None, worker.dice.bend(address)))
            }
        };
    }
    let length = match worker.dice.below(128) {
        0 => 1 << 20,
        _ => worker.dice.pick(&[1u64, 8, 4096, 4097, 12_288]),
    };
    let length = worker.dice.bend(length);
    let places = ends.map(|end| match end {
        Some((Some(index), at)) => CopyEnd::Segment(&worker.grants[index].segment, at),
        Some((None, at)) => CopyEnd::Own(at),
        None => CopyEnd::Own(0),
    });
    let result = device::copy(&device, places[0], places[1], length as usize).result;
    worker.onecopy = Some(device);
    Some(result)
}

fn onecopy_segment_info(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.grants.len())?;
    Some(worker.grants[index].segment.info().map(|_| ()))
}

fn onecopy_restrict(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.grants.len())?;
    let write = worker.dice.once_in(2);
    let whole = worker.grants[index].whole;
    let restricted = worker.grants[index].segment.restrict(write);
    Some(restricted.map(|segment| keep_grant(worker, segment, whole)))
}

fn onecopy_revoke(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.grants.len())?;
    Some(worker.grants[index].segment.revoke())
}

fn onecopy_close_segment(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.grants.len())?;
    drop(worker.grants.swap_remove(index));
    Some(Ok(()))
}

/// A segment goes to another worker; a whole one so marked.
fn pass(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.grants.len())?;
    let to = worker.dice.index(worker.boxes.len())?;
    let grant = &worker.grants[index];
    Some(send(
        &worker.boxes[to].0,
        grant.segment.as_fd(),
        u8::from(grant.whole),
    ))
}

fn take(worker: &mut Worker<'_>) -> Called {
    match receive(&worker.boxes[worker.slot].1) {
        Ok((fd, mark)) => {
            keep_grant(worker, device::segment(fd), mark != 0);
            Some(Ok(()))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(error)),
    }
}
