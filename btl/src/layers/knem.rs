// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies by a kernel module, in one system call and without attaching anything.
//!
//! By the *extension* the module copies between the descriptor that the peer granted and this process's memory, in
//! either direction; nothing is registered. The *plain* interface is that of any module that speaks the KNEM ABI. By it
//! the sender exposes each message as a region and names it by its cookie in the announcement. The receiver copies from
//! it.
//!
//! A region is made per message and never kept, because it names *pages*. A later message at the same address may lie
//! in others, which only a process that sees every `munmap` could know. For the same reason nobody writes into a
//! region. A receiver that also copies, or forks, could come to other pages than those that were pinned.
//!
//! # Safety
//! The local side of each copy is made of slices; the remote side is checked by the kernel.
#![allow(unsafe_code, reason = "ioctls that copy to memory of this process")]

use crate::contract::{
    CopyLayer, Failure, LayerSettings, PeerAccess, Refusal, RegionPart, RemoteRange,
};
use crate::module::{AgreedInterface, Guarantees, Region, interface};
use crate::pieces::{Gathered, pieces, pieces_mut, walk};
use crate::proving;
use knem_sys::{KNEM_STATUS_SUCCESS, knem_cmd_inline_copy, knem_cmd_param_iovec};
use onecopy_shm::segment::PeerSegment;
use onecopy_sys::{CopyEnd, ONECOPY_FEATURE_COPY, ONECOPY_SEGMENT_WRITE};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// Local pieces of one call, as for `cma`: they lie on the stack.
const PIECES: usize = 64;

#[derive(Debug)]
enum Access {
    Extension {
        device: Arc<onecopy_sys::Device>,
        segment: onecopy_sys::Segment,
        /// The peer's address of the segment's first byte.
        base: u64,
        can_write: bool,
    },
    Plain(Arc<knem_sys::Device>),
}

/// The layer, for one peer.
#[derive(Debug)]
pub struct KnemLayer {
    access: Access,
    call: &'static str,
}

impl KnemLayer {
    /// Proves the layer: copies the peer's number.
    ///
    /// # Errors
    /// A [`Refusal`]: the pair does without this layer.
    pub fn prove(
        peer: &PeerSegment,
        means: &PeerAccess,
        terms: &LayerSettings,
    ) -> Result<Self, Refusal> {
        let module = &terms.module;
        let agreed = interface(
            peer.rank(),
            (&module.onecopy, means.grant()),
            (&module.knem, means.export.proof),
            "memory to copy from",
        )?;
        let refuse = |error: &io::Error| explain("copy by the module", peer.rank(), error);
        let (layer, proof) = match agreed {
            AgreedInterface::Plain { device, offer } => {
                let layer = Self {
                    access: Access::Plain(Arc::clone(device)),
                    call: "KNEM inline copy",
                };
                (layer, Some(offer))
            }
            AgreedInterface::Extension { device, grant } => {
                let open = || -> io::Result<Self> {
                    let segment = onecopy_sys::Segment::from(grant.try_clone_to_owned()?);
                    let info = segment.info()?;
                    if device.info()?.features & ONECOPY_FEATURE_COPY == 0 {
                        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
                    }
                    Ok(Self {
                        access: Access::Extension {
                            device: Arc::clone(device),
                            segment,
                            base: info.address,
                            can_write: info.flags & ONECOPY_SEGMENT_WRITE != 0,
                        },
                        call: "onecopy copy",
                    })
                };
                (open().map_err(|e| refuse(&e))?, None)
            }
        };
        let region = proof.map(|cookie| RegionPart { cookie, offset: 0 });
        let is_peers = proving::reads_nonce(&layer, peer, region).map_err(|e| refuse(&e.source))?;
        if !is_peers {
            return Err(Refusal::new(
                format!(
                    "what the module copied is not rank {}'s memory",
                    peer.rank()
                ),
                "report this; ONECOPY_LAYERS=^knem avoids it",
            ));
        }
        Ok(layer)
    }
}

/// The guarantees by each interface.
pub const GUARANTEES: Guarantees = Guarantees {
    extension: [
        "ranks of the job that got the descriptor",
        "do not matter",
        "an error",
        "while a copy runs",
        "is seen by the next copy",
        "nobody may",
    ],
    plain: [
        "processes of the same user that know a message's cookie, for reading",
        "the same user, as the kernel sees it; Yama is not asked",
        "an error",
        "those of a message, until it is received",
        "is another region: each message has its own",
        "is not written: regions are for reading",
    ],
};

/// What an error means, and what to do about it.
#[must_use]
pub fn explain(call: &str, peer: u32, error: &io::Error) -> Refusal {
    let remedy = match error.raw_os_error() {
        Some(libc::EFAULT | libc::EINVAL | libc::EOWNERDEAD | libc::ESRCH | libc::ENOENT) => {
            "the peer's memory is not there: it ended, or freed a buffer that was being sent"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the module lets this user not reach the peer: run the ranks as one user"
        }
        Some(libc::EOPNOTSUPP) => "load a module that can copy: see kmod/README.md",
        Some(libc::ENOMEM) => "raise the limit on locked memory (ulimit -l)",
        _ => "see kmod/README.md",
    };
    Refusal::new(format!("{call} with rank {peer}: {error}"), remedy)
}

/// Copies between a range of the peer and `len` bytes here; what was done is not done again after an interruption.
fn copy_all<'s>(
    device: &onecopy_sys::Device,
    place: impl Fn(u64) -> (CopyEnd<'s>, CopyEnd<'s>),
    len: u64,
) -> io::Result<()> {
    let mut offset = 0;
    while offset < len {
        let (from, to) = place(offset);
        // SAFETY: one side is memory that the caller lent for that, the other is the kernel's to check.
        let progress = unsafe { device.copy(from, to, len - offset) };
        offset += progress.done.min(len - offset);
        match progress.result {
            Ok(()) if progress.done == 0 => {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            // Of this call: the memory behind the segment has ended with its process.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                return Err(io::Error::from_raw_os_error(libc::EOWNERDEAD));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Local pieces for bytes of one region that follow one another: they go in one call.
struct Batch<'d> {
    device: &'d knem_sys::Device,
    cookie: u64,
    offset: u64,
    bytes: u64,
    pieces: Gathered<knem_cmd_param_iovec, PIECES>,
}

impl<'d> Batch<'d> {
    fn new(device: &'d knem_sys::Device) -> Self {
        Self {
            device,
            cookie: 0,
            offset: 0,
            bytes: 0,
            pieces: Gathered::new(knem_cmd_param_iovec::default()),
        }
    }

    /// Adds a piece, of an exclusive slice that outlives the batch.
    fn push(&mut self, part: RegionPart, piece: knem_cmd_param_iovec) -> io::Result<()> {
        let follows = self.cookie == part.cookie && self.offset + self.bytes == part.offset;
        if !follows || self.pieces.is_full() {
            self.flush()?;
            (self.cookie, self.offset) = (part.cookie, part.offset);
        }
        self.pieces.push(piece);
        self.bytes += piece.len;
        Ok(())
    }

    /// Copies what was added.
    fn flush(&mut self) -> io::Result<()> {
        let pieces = self.pieces.take();
        self.bytes = 0;
        if pieces.is_empty() {
            return Ok(());
        }
        let mut command = knem_cmd_inline_copy {
            local_iovec_array: pieces.as_ptr().expose_provenance() as u64,
            local_iovec_nr: pieces.len() as u32,
            write: 0,
            remote_cookie: self.cookie,
            remote_offset: self.offset,
            ..Default::default()
        };
        // SAFETY: the pieces were made of exclusive slices, for which the caller lent them; the region is the kernel's
        // to check.
        unsafe { self.device.inline_copy(&mut command) }?;
        if command.current_status != u32::from(KNEM_STATUS_SUCCESS) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(())
    }
}

impl CopyLayer for KnemLayer {
    fn reaches(&self, range: &RemoteRange) -> bool {
        match &self.access {
            Access::Extension { .. } => true,
            Access::Plain(_) => range.region.is_some(),
        }
    }

    fn can_write(&self) -> bool {
        matches!(
            self.access,
            Access::Extension {
                can_write: true,
                ..
            }
        )
    }

    fn wants_exposure(&self) -> bool {
        matches!(self.access, Access::Plain(_))
    }

    fn expose(
        &self,
        pieces: &mut dyn Iterator<Item = (usize, usize)>,
    ) -> Option<Result<Region, Failure>> {
        let Access::Plain(device) = &self.access else {
            return None;
        };
        let region = Region::expose(device, pieces);
        onecopy_shm::fault::point("knem.exposed");
        let call = "KNEM create region";
        Some(region.map_err(|source| Failure { call, source }))
    }

    fn get(&self, from: &[RemoteRange], out: &mut [IoSliceMut<'_>]) -> Result<(), Failure> {
        let fail = |source| Failure {
            call: self.call,
            source,
        };
        match &self.access {
            Access::Extension {
                device,
                segment,
                base,
                ..
            } => walk(from, pieces_mut(out), |range, out, part| {
                let local = out[part.clone()].as_mut_ptr() as u64;
                let place = |offset| {
                    let remote = range.address.wrapping_sub(*base).wrapping_add(offset);
                    (
                        CopyEnd::Segment(segment, remote),
                        CopyEnd::Own(local + offset),
                    )
                };
                copy_all(device, place, part.len() as u64)
            })
            .map_err(fail),
            Access::Plain(device) => {
                let mut batch = Batch::new(device);
                walk(from, pieces_mut(out), |range, out, part| {
                    let region = range.region.ok_or(io::ErrorKind::Unsupported)?;
                    let piece = knem_cmd_param_iovec {
                        base: out[part.clone()].as_mut_ptr() as u64,
                        len: part.len() as u64,
                    };
                    batch.push(region, piece)
                })
                .and_then(|()| batch.flush())
                .map_err(fail)
            }
        }
    }

    fn put(&self, to: &[RemoteRange], bytes: &[IoSlice<'_>]) -> Result<(), Failure> {
        let fail = |source| Failure {
            call: self.call,
            source,
        };
        let Access::Extension {
            device,
            segment,
            base,
            ..
        } = &self.access
        else {
            return Err(fail(io::ErrorKind::Unsupported.into()));
        };
        walk(to, pieces(bytes), |range, bytes, part| {
            let local = bytes[part.clone()].as_ptr() as u64;
            let place = |offset| {
                let remote = range.address.wrapping_sub(*base).wrapping_add(offset);
                (
                    CopyEnd::Own(local + offset),
                    CopyEnd::Segment(segment, remote),
                )
            };
            copy_all(device, place, part.len() as u64)
        })
        .map_err(fail)
    }
}
