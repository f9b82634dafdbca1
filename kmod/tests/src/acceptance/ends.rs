// SPDX-License-Identifier: MIT OR Apache-2.0
//! Beginnings and ends: of processes, of their programs, of segments and permits, in any order.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use libc::{SIGBUS, SIGSEGV};
use nix::sys::signal::Signal;
use onecopy_sys::Segment;

use crate::device::{self, attach_all, export, make, map};
use crate::mem::{Area, mix, page_size};
use crate::outcome::{At, Fault, Outcome, check, check_eq};
use crate::peer::{Link, Peer, peer};
use crate::system;

fn size() -> usize {
    16 * page_size()
}

pub(super) fn exec() -> Outcome {
    let mut owner = peer(|link: &Link| {
        let area = Area::new(size())?;
        area.fill(1);
        let device = device::xpmem()?;
        link.send(make(&device, &area, 0o600)? as u64)?;
        link.give(export(&area, true)?.as_fd())?;
        link.receive()?;
        let error = std::process::Command::new("/proc/self/exe")
            .args(["idle", "600"])
            .exec();
        Err(Fault::Fail(format!("exec: {error}")))
    })?;
    let segid = owner.link.receive()?;
    let segment = device::segment(owner.link.take()?);
    let device = device::xpmem()?;
    let legacy = attach_all(&device, segid, size())?;
    let granted = map(&segment, size(), true)?;
    legacy.verify(1)?;
    granted.verify(1)?;
    let page = device::generation(&segment)?;
    owner.link.send(0)?;
    let gone = system::until(Duration::from_secs(20), || {
        device::read(&page).state == onecopy_sys::ONECOPY_STATE_OWNER_GONE
    });
    check!(
        gone,
        "state {} after exec in the owner",
        device::read(&page).state
    );
    for at in (0..size()).step_by(page_size()) {
        check_eq!(
            legacy.try_load(at),
            Err(SIGBUS),
            "a load after exec in the owner"
        );
        check_eq!(
            granted.try_load(at),
            Ok(0),
            "a load from a grant after exec in the owner"
        );
    }
    device::detach(&device, &legacy).at("DETACH")?;
    // The new program has not the old one's descriptors, which exec closes last.
    let refused = system::until(Duration::from_secs(20), || {
        device.get(segid as i64, xpmem_sys::XPMEM_RDWR).is_err()
    });
    check!(refused, "GET after exec worked");
    owner.signal(Signal::SIGKILL)?;
    owner.wait(Duration::from_secs(20))?;
    Ok(())
}

pub(super) fn death_while_read() -> Outcome {
    for _ in 0..10 {
        let mut owner = peer(|link: &Link| {
            let area = Area::new(size())?;
            area.fill(1);
            let device = device::xpmem()?;
            link.send(make(&device, &area, 0o600)? as u64)?;
            link.give(export(&area, true)?.as_fd())?;
            link.receive().map(|_| ())
        })?;
        let segid = owner.link.receive()?;
        let segment = device::segment(owner.link.take()?);
        let reader = peer(move |link: &Link| {
            let device = device::xpmem()?;
            let legacy = attach_all(&device, segid, size())?;
            let granted = map(&segment, size(), true)?;
            link.turn()?;
            let begin = Instant::now();
            let (mut ended, mut round) = ([false; 2], 0usize);
            while ended != [true; 2] {
                let offset = round % 16 * page_size();
                round += 1;
                let expected = mix(1, offset);
                match legacy.try_load(offset) {
                    Ok(word) => check_eq!(word, expected, "a word of the owner's"),
                    Err(signal) => {
                        check_eq!(signal, SIGBUS, "signal");
                        ended[0] = true;
                    }
                }
                match granted.try_load(offset) {
                    Ok(0) => ended[1] = true,
                    other => check_eq!(other, Ok(expected), "a word of the owner's"),
                }
                check!(
                    begin.elapsed() < Duration::from_secs(20),
                    "the owner's death is not seen: {ended:?}"
                );
            }
            device::detach(&device, &legacy).at("DETACH")?;
            granted.unmap()
        })?;
        reader.link.turn()?;
        owner.signal(Signal::SIGKILL)?;
        owner.wait(Duration::from_secs(20))?;
        reader.join()?;
    }
    Ok(())
}

pub(super) fn every_order_of_ends() -> Outcome {
    // What the owner and the importer do, in every order; each ends with its exit.
    const STEPS: [&str; 6] = [
        "remove",
        "owner exits",
        "detach",
        "release",
        "close",
        "importer exits",
    ];
    for order in 0..STEPS.len().pow(3) {
        let steps = [order % 6, order / 6 % 6, order / 36];
        let mut owner = Some(peer(|link: &Link| {
            let area = Area::new(size())?;
            area.fill(1);
            let device = device::xpmem()?;
            let segid = make(&device, &area, 0o600)?;
            link.send(segid as u64)?;
            while link.receive()? == 1 {
                let _ = device.remove(segid);
                link.send(0)?;
            }
            Ok(())
        })?);
        let Some(segid) = owner
            .as_ref()
            .map(|owner| owner.link.receive())
            .transpose()?
        else {
            continue;
        };
        let mut importer = Some(peer(move |link: &Link| {
            let mut device = Some(device::xpmem()?);
            let Some(first) = device.as_ref() else {
                return Ok(());
            };
            let apid = device::get(first, segid)?;
            let view = device::attach(first, apid, 0, size())?;
            view.verify_marks(1)?;
            link.send(0)?;
            loop {
                match (link.receive()?, &device) {
                    (2, Some(device)) => drop(device::detach(device, &view)),
                    (3, Some(device)) => drop(device.release(apid)),
                    (4, _) => drop(device.take()),
                    (5, _) => return Ok(()),
                    _ => {}
                }
                // Whatever is left of it: the owner's words, a hole, or nothing.
                let found = view.try_load(0);
                check!(
                    matches!(found, Ok(word) if word == mix(1, 0))
                        || matches!(found, Err(SIGBUS | SIGSEGV)),
                    "a load: {found:?}"
                );
                link.send(0)?;
            }
        })?);
        if let Some(importer) = &importer {
            importer.link.receive()?;
        }
        let mut end = |step: usize| -> Outcome {
            match step {
                0 => {
                    if let Some(owner) = &owner {
                        owner.link.send(1)?;
                        owner.link.receive()?;
                    }
                }
                1 => {
                    if let Some(owner) = owner.take() {
                        owner.dismiss()?;
                    }
                }
                5 => {
                    if let Some(importer) = importer.take() {
                        importer.link.send(5)?;
                        importer.join()?;
                    }
                }
                _ => {
                    if let Some(importer) = &importer {
                        importer.link.send(step as u64)?;
                        importer.link.receive()?;
                    }
                }
            }
            Ok(())
        };
        for step in steps.into_iter().chain([1, 5]) {
            end(step).at(format_args!(
                "{:?}, at {}",
                steps.map(|step| STEPS[step]),
                STEPS[step]
            ))?;
        }
    }
    Ok(())
}

pub(super) fn first_opens_at_once() -> Outcome {
    let others: Vec<Peer> = (0..8)
        .map(|number| {
            peer(move |link: &Link| {
                link.turn()?;
                let threads: Vec<_> = (0..4u64)
                    .map(|thread| {
                        std::thread::spawn(move || {
                            let seed = number * 4 + thread;
                            let area = Area::new(size())?;
                            area.fill(seed);
                            let device = device::xpmem()?;
                            let segid = make(&device, &area, 0o600)?;
                            attach_all(&device, segid as u64, size())?.verify(seed)?;
                            let segment: Segment = export(&area, false)?;
                            map(&segment, size(), false)?.verify(seed)
                        })
                    })
                    .collect();
                for thread in threads {
                    thread
                        .join()
                        .map_err(|_| Fault::Fail("a thread ended badly".to_owned()))??;
                }
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    for other in &others {
        other.link.receive()?;
    }
    for other in &others {
        other.link.send(0)?;
    }
    for other in others {
        other.join()?;
    }
    Ok(())
}
