// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls on /dev/knem.

use std::io;
use std::os::fd::AsFd;

use knem_sys::{
    KNEM_FLAG_ANY_USER_ACCESS, KNEM_FLAG_DMA, KNEM_FLAG_DMATHREAD, KNEM_FLAG_MEMCPYTHREAD,
    KNEM_FLAG_NOTIFY_FD, KNEM_FLAG_PINLOCAL, KNEM_FLAG_SINGLEUSE, knem_cmd_copy,
    knem_cmd_copy_bounded, knem_cmd_inline_copy, knem_cmd_param_iovec,
};

use super::super::memory::Called;
use super::super::table::Kind;
use super::super::worker::{Knem, Worker};
use super::{DEVICES, OBJECTS};
use crate::device::{self, Inline};
use crate::mem::{READ, WRITE};
use crate::peer::poll_read;

/// Copies of at most so many bytes, so that they take no time of note.
const LARGE: u64 = 1 << 20;

pub(super) fn open(worker: &mut Worker<'_>) -> Called {
    if worker.knem.len() >= DEVICES {
        return None;
    }
    // Without an array no copy can be asynchronous.
    let mapped = !worker.dice.once_in(3);
    Some(knem_sys::Device::open().map(|device| {
        let status = if mapped {
            device.map_status(8).ok()
        } else {
            None
        };
        worker.knem.push(Knem {
            device,
            status,
            cookies: Vec::new(),
        });
    }))
}

pub(super) fn close(worker: &mut Worker<'_>) -> Called {
    if !worker.dice.once_in(8) {
        return None;
    }
    let index = worker.dice.index(worker.knem.len())?;
    drop(worker.knem.swap_remove(index));
    Some(Ok(()))
}

pub(super) fn info(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    Some(worker.knem[index].device.info().map(|_| ()))
}

pub(super) fn bind(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let flags = worker.dice.pick(&[1, 2, 4]);
    let flags = worker.dice.bend_flags(flags);
    let mask = worker.dice.pick(&[1u64, 2, 3, 0, u64::MAX]);
    let words = worker.dice.pick(&[1usize, 1, 2, 64]);
    Some(
        worker.knem[index]
            .device
            .bind_offload(flags, &[mask; 64][..words]),
    )
}

pub(super) fn map_status(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let count = worker.dice.pick(&[1usize, 8, 64, 4096, 4097, 1 << 20]);
    let knem = &mut worker.knem[index];
    if knem.status.is_some() && !worker.dice.once_in(8) {
        return None;
    }
    Some(
        knem.device
            .map_status(count)
            .map(|status| knem.status = Some(status)),
    )
}

/// Some pieces of the arena.
fn pieces(worker: &mut Worker<'_>) -> Vec<knem_cmd_param_iovec> {
    let count = worker.dice.pick(&[1usize, 1, 1, 2, 3, 16, 0]);
    (0..count)
        .map(|_| {
            let range = worker.small_range();
            let shift = worker.dice.pick(&[0u64, 0, 8, 13]);
            let length = worker
                .dice
                .pick(&[1u64, 8, 4095, range.length() as u64 - shift]);
            knem_cmd_param_iovec {
                base: worker.dice.bend(range.base() as u64 + shift),
                len: worker.dice.bend(length),
            }
        })
        .collect()
}

pub(super) fn create(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let memory = pieces(worker);
    let protection = worker
        .dice
        .pick(&[READ, READ | WRITE, READ | WRITE, WRITE, 0]);
    let flags = worker
        .dice
        .pick(&[0, 0, KNEM_FLAG_ANY_USER_ACCESS, KNEM_FLAG_SINGLEUSE]);
    let flags = worker.dice.bend_flags(flags);
    let at = worker.dice.next();
    let knem = &mut worker.knem[index];
    let made = device::try_region(&knem.device, &memory, protection, flags);
    Some(made.map(|cookie| {
        knem.cookies.push(cookie);
        worker.table.notes.offer(Kind::Cookie, at, cookie);
        if knem.cookies.len() > OBJECTS {
            let old = knem.cookies.swap_remove(0);
            let _ = knem.device.destroy_region(old);
        }
    }))
}

pub(super) fn destroy(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let knem = &mut worker.knem[index];
    let cookie = match worker.dice.index(knem.cookies.len()) {
        Some(at) if !worker.dice.once_in(6) => knem.cookies.swap_remove(at),
        _ => worker.table.notes.name_at(Kind::Cookie, worker.dice.next()),
    };
    Some(knem.device.destroy_region(cookie))
}

/// A region of this thread's or of anybody's; one that is gone is forgotten soon.
fn cookie(worker: &mut Worker<'_>) -> u64 {
    let name = match worker.dice.index(worker.knem.len()) {
        Some(index) if worker.dice.once_in(3) => {
            let cookies = &worker.knem[index].cookies;
            worker.dice.index(cookies.len()).map(|at| cookies[at])
        }
        _ => None,
    };
    let name = name.unwrap_or_else(|| {
        let (at, name) = worker.name(Kind::Cookie);
        if worker.dice.once_in(16) {
            worker.table.notes.offer(Kind::Cookie, at, 0);
        }
        name
    });
    worker.dice.bend(name)
}

/// Flags of a copy, and the byte of the status array that it reports in.
fn way(worker: &mut Worker<'_>) -> (u32, u32) {
    let flags = worker.dice.pick(&[
        0,
        0,
        0,
        KNEM_FLAG_MEMCPYTHREAD,
        KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD,
        KNEM_FLAG_DMA | KNEM_FLAG_DMATHREAD,
        KNEM_FLAG_PINLOCAL,
    ]);
    let index = worker.dice.below(8);
    (
        worker.dice.bend_flags(flags),
        worker.dice.bend(index) as u32,
    )
}

fn offset(worker: &mut Worker<'_>) -> u64 {
    let offset = worker.dice.pick(&[0u64, 0, 0, 8, 100, 4096]);
    worker.dice.bend(offset)
}

fn length(worker: &mut Worker<'_>) -> u64 {
    let length = match worker.dice.below(128) {
        0 => LARGE,
        _ => worker.dice.pick(&[1u64, 8, 100, 4096]),
    };
    worker.dice.bend(length)
}

pub(super) fn copy(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let (flags, async_status_index) = way(worker);
    let mut command = knem_cmd_copy {
        src_cookie: cookie(worker),
        src_offset: offset(worker),
        dst_cookie: cookie(worker),
        dst_offset: offset(worker),
        flags,
        async_status_index,
        ..Default::default()
    };
    Some(worker.knem[index].device.copy(&mut command))
}

pub(super) fn copy_bounded(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let (flags, async_status_index) = way(worker);
    let mut command = knem_cmd_copy_bounded {
        src_cookie: cookie(worker),
        src_offset: offset(worker),
        dst_cookie: cookie(worker),
        dst_offset: offset(worker),
        length: length(worker),
        flags,
        async_status_index,
        ..Default::default()
    };
    Some(worker.knem[index].device.copy_bounded(&mut command))
}

pub(super) fn inline(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let local = pieces(worker);
    let (flags, async_status_index) = way(worker);
    let mut command = knem_cmd_inline_copy {
        local_iovec_array: local.as_ptr().expose_provenance() as u64,
        local_iovec_nr: local.len() as u32,
        write: worker.dice.below(2) as u32,
        remote_cookie: cookie(worker),
        remote_offset: offset(worker),
        flags,
        async_status_index,
        ..Default::default()
    };
    Some(device::inline_copy(
        &worker.knem[index].device,
        &mut command,
    ))
}

pub(super) fn inline_bounded(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let local = pieces(worker);
    let (flags, status) = way(worker);
    let call = Inline {
        cookie: cookie(worker),
        offset: offset(worker),
        length: length(worker),
        write: worker.dice.once_in(2),
        flags,
        index: status,
    };
    Some(call.run(&worker.knem[index].device, &local).map(|_| ()))
}

pub(super) fn init_send(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let memory = pieces(worker);
    let at = worker.dice.next();
    let sent = device::init_send(&worker.knem[index].device, &memory);
    Some(sent.map(|cookie| {
        worker.table.notes.offer(Kind::Sent, at, cookie);
        let knem = &mut worker.knem[index];
        knem.cookies.push(cookie);
        if knem.cookies.len() > OBJECTS {
            let old = knem.cookies.swap_remove(0);
            let _ = knem.device.destroy_region(old);
        }
    }))
}

/// Something to receive, and what it is if it was made for that. What others have sent is mostly gone when somebody
/// comes to it, with its process, its file or its memory.
fn sent(worker: &mut Worker<'_>, index: usize) -> (u64, Option<u64>) {
    if worker.dice.once_in(3) {
        let memory = pieces(worker);
        if let Ok(cookie) = device::init_send(&worker.knem[index].device, &memory) {
            return (worker.dice.bend(cookie), Some(cookie));
        }
    }
    let (at, name) = worker.name(Kind::Sent);
    // It can be received once.
    worker.table.notes.offer(Kind::Sent, at, 0);
    (worker.dice.bend(name), None)
}

/// Takes back what was made to be received, if it was not.
fn forget(worker: &Worker<'_>, index: usize, made: Option<u64>) {
    if let Some(cookie) = made {
        let _ = worker.knem[index].device.destroy_region(cookie);
    }
}

pub(super) fn sync_recv(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let memory = pieces(worker);
    let (cookie, made) = sent(worker, index);
    let received = device::sync_recv(&worker.knem[index].device, &memory, cookie);
    forget(worker, index, made);
    Some(received.map(|_| ()))
}

pub(super) fn async_recv(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let memory = pieces(worker);
    let (cookie, made) = sent(worker, index);
    let status = worker.dice.below(8) as u32;
    let device = &worker.knem[index].device;
    let started = device::async_recv(device, &memory, cookie, status);
    forget(worker, index, made);
    Some(started)
}

/// Notifications, if there are any; the counters, if the array is not mapped.
pub(super) fn read(worker: &mut Worker<'_>) -> Called {
    let index = worker.dice.index(worker.knem.len())?;
    let knem = &worker.knem[index];
    match poll_read(knem.device.as_fd()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        other => Some(other),
    }
}
