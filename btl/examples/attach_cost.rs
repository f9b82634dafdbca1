// SPDX-License-Identifier: MIT OR Apache-2.0
//! From which size on it pays to attach memory that is read once: the figure behind the default of
//! `ONECOPY_ATTACH_MIN`.
//!
//! Reads buffers of this very process, each of them once. It reads by a window that is mapped for it and given up
//! after, by a window that stands, and by `process_vm_readv`. Needs the kernel module.

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use onecopy_btl::attachment::Window;
use onecopy_btl::module::{Exposed, Module};
use onecopy_obs::ModuleAbi;
use onecopy_shm::copy::Kernel;
use std::error::Error;
use std::hint::black_box;
use std::io::{IoSliceMut, Write};
use std::time::Instant;

const WINDOW: u64 = 2 << 20;
/// Bytes of all buffers: each window of them is read once per round.
const POOL: usize = 64 << 20;

/// The median of the times, in microseconds.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn timed(mut f: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    f()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

fn main() -> Result<(), Box<dyn Error>> {
    let module = Module::open(true, false, ModuleAbi::Onecopy);
    let (behind, _) = module
        .behind_xpmem()
        .map_err(|refusal| refusal.to_string())?;
    let nonce = 0u64;
    let exposed = Exposed::new(&module, std::ptr::from_ref(&nonce) as usize);
    let grant = exposed.grant().ok_or("the module exported nothing")?;
    let segment = onecopy_sys::Segment::from(grant.try_clone_to_owned()?);
    let mut source = vec![0u8; POOL];
    for (at, byte) in source.iter_mut().enumerate() {
        *byte = at as u8;
    }
    let first = (source.as_ptr() as u64).next_multiple_of(WINDOW);
    let windows = (source.as_ptr() as u64 + POOL as u64 - first) / WINDOW;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{behind}; microseconds, medians of {windows}")?;
    writeln!(
        out,
        "{:>9} {:>12} {:>12} {:>12}",
        "bytes", "attach once", "attached", "readv"
    )?;
    let mut crossing = None;
    for size in (12..=21).map(|bits| 1usize << bits) {
        let mut target = vec![0u8; size];
        let (mut once, mut standing, mut readv) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..windows {
            let begin = first + index * WINDOW;
            let map = || {
                segment
                    .map(begin, WINDOW as usize, true)
                    .map(Window::of_segment)
            };
            let mut window = None;
            once.push(timed(|| {
                let mapped = map()?;
                mapped.read(0, &mut target, Kernel::Memcpy)?;
                drop(mapped);
                Ok(())
            })?);
            let mapped = window.insert(map()?);
            mapped.read(0, &mut target, Kernel::Memcpy)?;
            standing.push(timed(|| {
                Ok(mapped.read(0, &mut target, Kernel::Memcpy)?)
            })?);
            let remote = [RemoteIoVec {
                base: begin as usize,
                len: size,
            }];
            readv.push(timed(|| {
                let mut local = [IoSliceMut::new(&mut target)];
                let moved = process_vm_readv(Pid::this(), &mut local, &remote)?;
                assert_eq!(moved, size);
                Ok(())
            })?);
            black_box(&target);
        }
        let (once, standing, readv) = (median(once), median(standing), median(readv));
        if once < readv {
            crossing.get_or_insert(size);
        } else {
            crossing = None;
        }
        writeln!(out, "{size:>9} {once:>12.1} {standing:>12.1} {readv:>12.1}")?;
    }
    match crossing {
        Some(size) => writeln!(out, "to attach for one copy pays from {size} bytes on")?,
        None => writeln!(out, "to attach for one copy pays at none of these sizes")?,
    }
    Ok(())
}
