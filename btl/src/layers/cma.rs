// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cross-memory attach: the kernel copies between two address spaces, `process_vm_readv(2)` and `process_vm_writev(2)`.
//!
//! The kernel permits it to a process that may trace the target. The target must be of the same user and dumpable, and
//! Yama's `ptrace_scope` must permit it. 0 permits anyone of the user. 1 permits ancestors and whom the target named by
//! `prctl(PR_SET_PTRACER)`. 2 asks for `CAP_SYS_PTRACE`, and 3 permits nobody. The capability is judged in the target's
//! user namespace, the pid in the caller's pid namespace. Container runtimes may filter the calls. So the only
//! trustworthy answer is a transfer: [`CmaLayer::prove`] reads a number from the peer and writes one there.
//!
//! # Safety
//! The local side of each call is made of slices. The kernel checks the remote side, and returns EFAULT for addresses
//! that are not mapped in the peer.
#![allow(
    unsafe_code,
    reason = "the system calls process_vm_readv and process_vm_writev"
)]

use crate::contract::{CopyLayer, Failure, Probe, Refusal, RemoteRange};
use crate::pieces::{Gathered, pieces, pieces_mut, walk};
use crate::proving;
use crate::yama::ptrace_scope;
use onecopy_obs::{Knobs, Ptracer};
use onecopy_shm::failing;
use onecopy_shm::segment::PeerSegment;
use std::io::{self, IoSlice, IoSliceMut};

/// Pieces per side and call: they lie on the stack. The kernel takes 1024. Chosen by magnitude: both sides have 2 KiB
/// then, and to begin the next call costs little beside 64 copies.
const PAIRS: usize = 64;
/// The kernel moves at most this many bytes per call.
const CALL_MAX: usize = 0x7fff_f000;

/// The layer, for one peer.
#[derive(Debug, Clone, Copy)]
pub struct CmaLayer {
    pid: libc::pid_t,
    can_write: bool,
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    fn call(self) -> &'static str {
        match self {
            Self::Read => "process_vm_readv",
            Self::Write => "process_vm_writev",
        }
    }
}

/// Moves `local` from or to `remote`; both hold the same number of bytes.
fn transfer(
    direction: Direction,
    pid: libc::pid_t,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> io::Result<usize> {
    for step in ["cma.refused", "cma.gone", "cma.fault"] {
        failing::attempt(step)?;
    }
    let (l, r) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    let moved = match direction {
        // SAFETY: the local pieces are valid for writes (made from exclusive slices by the callers); remote addresses
        // are the kernel's to check.
        Direction::Read => unsafe {
            libc::process_vm_readv(pid, local.as_ptr(), l, remote.as_ptr(), r, 0)
        },
        // SAFETY: the local pieces are valid for reads; remote addresses are the kernel's to check.
        Direction::Write => unsafe {
            libc::process_vm_writev(pid, local.as_ptr(), l, remote.as_ptr(), r, 0)
        },
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// As [`transfer_all`] of one pair, without the lists: to clear them takes as long as all else here. What the longer of
/// the two has beyond the other is left out. A call moves `MOST` bytes at most.
fn transfer_one<const MOST: usize>(
    direction: Direction,
    pid: libc::pid_t,
    (local, room): (*mut u8, usize),
    range: &RemoteRange,
) -> io::Result<()> {
    let remote = remote_iovec(range);
    let len = remote.iov_len.min(room);
    let mut done = 0;
    while done < len {
        let rest = |base: *mut libc::c_void| libc::iovec {
            iov_base: base.wrapping_byte_add(done),
            iov_len: (len - done).min(MOST),
        };
        let (local, remote) = (rest(local.cast()), rest(remote.iov_base));
        match transfer(direction, pid, &[local], &[remote]) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(moved) => done += moved,
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Moves everything, in as many calls as the kernel's limits demand; a short transfer goes on where it stopped.
fn transfer_all(
    direction: Direction,
    pid: libc::pid_t,
    pieces: &[(libc::iovec, libc::iovec)],
) -> io::Result<()> {
    let mut index = 0;
    let mut skip = 0usize;
    while index < pieces.len() {
        let mut local = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PAIRS];
        let mut remote = local;
        let (mut count, mut bytes) = (0, 0);
        for (l, r) in pieces[index..].iter().take(PAIRS) {
            let from = if count == 0 { skip } else { 0 };
            let len = (l.iov_len - from).min(CALL_MAX - bytes);
            local[count] = libc::iovec {
                iov_base: l.iov_base.wrapping_byte_add(from),
                iov_len: len,
            };
            remote[count] = libc::iovec {
                iov_base: r.iov_base.wrapping_byte_add(from),
                iov_len: len,
            };
            count += 1;
            bytes += len;
            if bytes == CALL_MAX {
                break;
            }
        }
        let mut moved = match transfer(direction, pid, &local[..count], &remote[..count]) {
            Ok(0) if bytes > 0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(moved) => moved,
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
            Err(e) => return Err(e),
        };
        while index < pieces.len() && moved >= pieces[index].0.iov_len - skip {
            moved -= pieces[index].0.iov_len - skip;
            (index, skip) = (index + 1, 0);
            if moved == 0 {
                break;
            }
        }
        skip += moved;
    }
    Ok(())
}

/// Pairs of pieces for few calls.
struct Batch {
    direction: Direction,
    pid: libc::pid_t,
    pairs: Gathered<(libc::iovec, libc::iovec), PAIRS>,
}

impl Batch {
    fn new(direction: Direction, pid: libc::pid_t) -> Self {
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            direction,
            pid,
            pairs: Gathered::new((empty, empty)),
        }
    }

    /// Adds a local piece as long as `range`. Of the caller's slice, which outlives the batch.
    fn push(&mut self, local: *mut u8, range: &RemoteRange) -> io::Result<()> {
        let remote = remote_iovec(range);
        let local = libc::iovec {
            iov_base: local.cast(),
            iov_len: remote.iov_len,
        };
        self.pairs.push((local, remote));
        if self.pairs.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        transfer_all(self.direction, self.pid, self.pairs.take())
    }
}

fn remote_iovec(range: &RemoteRange) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::without_provenance_mut(range.address as usize),
        iov_len: range.len as usize,
    }
}

fn set_ptracer(who: libc::c_ulong) -> io::Result<()> {
    // SAFETY: prctl(PR_SET_PTRACER) takes a pid or -1 and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, who, 0, 0, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Permits every process of the same user to read this process's memory where Yama would not. Replaces an earlier
/// permission.
fn permit_any_tracer() -> io::Result<()> {
    set_ptracer(libc::c_ulong::MAX)
}

/// Permits one process, and its descendants, to read this process's memory where Yama would not. Replaces an earlier
/// permission.
fn permit_tracer(pid: i32) -> io::Result<()> {
    set_ptracer(libc::c_ulong::try_from(pid).unwrap_or(0))
}

/// Permits peers to read this process's memory where Yama asks for that, if the user says so. This is done when this
/// rank starts, and when it connects with a process.
pub fn permit(knobs: &Knobs, peer: Option<i32>) {
    // A kernel without Yama refuses the call and needs no permission.
    let _ = match (knobs.cma_ptracer, peer) {
        (Ptracer::Any, None) => permit_any_tracer(),
        (Ptracer::Peer, Some(pid)) => permit_tracer(pid),
        _ => Ok(()),
    };
}

/// Whether the calls exist and are not filtered: this process reads from itself.
#[must_use]
pub fn probe() -> Probe {
    let source = 0x5eed_u64.to_ne_bytes();
    let mut target = [0u8; 8];
    let local = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: source.as_ptr().cast_mut().cast(),
        iov_len: 8,
    };
    match transfer(
        Direction::Read,
        std::process::id() as libc::pid_t,
        &[local],
        &[remote],
    ) {
        Ok(8) if target == source => Probe::Available {
            detail: match ptrace_scope() {
                None => "no Yama restriction".into(),
                Some(scope) => format!("kernel.yama.ptrace_scope is {scope}"),
            },
        },
        Ok(_) => Probe::Undetermined(io::Error::other(
            "process_vm_readv from this process returned other bytes",
        )),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            Probe::Unavailable(explain("process_vm_readv", 0, &e))
        }
        Err(e) => Probe::Undetermined(e),
    }
}

/// What an error of the calls means, and what to do about it.
#[must_use]
pub fn explain(call: &str, peer: u32, error: &io::Error) -> Refusal {
    let scope = ptrace_scope();
    let remedy = match (error.raw_os_error(), scope) {
        (Some(libc::ENOSYS), _) => {
            "a seccomp filter or the kernel lacks the call: allow process_vm_readv and process_vm_writev in the container's profile"
        }
        (Some(libc::EPERM), Some(1)) => {
            "set ONECOPY_CMA_PTRACER=peer, or sysctl kernel.yama.ptrace_scope=0"
        }
        (Some(libc::EPERM), Some(2)) => {
            "give the ranks CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0"
        }
        (Some(libc::EPERM), Some(3)) => "kernel.yama.ptrace_scope=3 forbids it until the next boot",
        (Some(libc::EPERM), _) => {
            "the peer is not dumpable, of another user or in another user namespace, or a seccomp filter forbids the call"
        }
        (Some(libc::ESRCH), _) => {
            "the peer's process is not visible from this pid namespace: start the ranks in one pid namespace"
        }
        (Some(libc::EFAULT), _) => "the peer's memory could not be read at that address",
        _ => "see process_vm_readv(2)",
    };
    Refusal::new(format!("{call} with rank {peer}: {error}"), remedy)
}

impl CmaLayer {
    /// Proves the layer with a peer whose process is `pid`: reads its nonce, and writes a number that is then seen
    /// through the mapping.
    ///
    /// # Errors
    /// A [`Refusal`]: the pair does without this layer.
    pub fn prove(peer: &PeerSegment, pid: Option<i32>) -> Result<Self, Refusal> {
        let pid = pid.ok_or_else(|| {
            Refusal::new(
                format!(
                    "rank {}'s process is not visible from this pid namespace",
                    peer.rank()
                ),
                "start the ranks in one pid namespace",
            )
        })?;
        let mut layer = Self {
            pid,
            can_write: false,
        };
        let is_peers = proving::reads_nonce(&layer, peer, None)
            .map_err(|e| explain(e.call, peer.rank(), &e.source))?;
        if !is_peers {
            return Err(Refusal::new(
                format!(
                    "process_vm_readv with rank {}: pid {pid} is another process here",
                    peer.rank()
                ),
                "start the ranks in one pid namespace",
            ));
        }
        layer.can_write = proving::writes_seen(&layer, peer, 17);
        Ok(layer)
    }
}

fn failed(direction: Direction, source: io::Error) -> Failure {
    Failure {
        call: direction.call(),
        source,
    }
}

impl CopyLayer for CmaLayer {
    fn reaches(&self, _: &RemoteRange) -> bool {
        true
    }

    fn can_write(&self) -> bool {
        self.can_write
    }

    fn get(&self, from: &[RemoteRange], out: &mut [IoSliceMut<'_>]) -> Result<(), Failure> {
        let fail = |e| failed(Direction::Read, e);
        if let ([range], [out]) = (from, &mut *out) {
            let local = (out.as_mut_ptr(), out.len());
            return transfer_one::<CALL_MAX>(Direction::Read, self.pid, local, range).map_err(fail);
        }
        let mut batch = Batch::new(Direction::Read, self.pid);
        walk(from, pieces_mut(out), |range, out, part| {
            batch.push(out[part].as_mut_ptr(), &range)
        })
        .and_then(|()| batch.flush())
        .map_err(fail)
    }

    fn put(&self, to: &[RemoteRange], bytes: &[IoSlice<'_>]) -> Result<(), Failure> {
        let fail = |e| failed(Direction::Write, e);
        if let ([range], [bytes]) = (to, bytes) {
            let local = (bytes.as_ptr().cast_mut(), bytes.len());
            return transfer_one::<CALL_MAX>(Direction::Write, self.pid, local, range)
                .map_err(fail);
        }
        let mut batch = Batch::new(Direction::Write, self.pid);
        walk(to, pieces(bytes), |range, bytes, part| {
            batch.push(bytes[part].as_ptr().cast_mut(), &range)
        })
        .and_then(|()| batch.flush())
        .map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_pieces_arrive_in_order() {
        let source: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let mut target = vec![0u8; source.len()];
        let pieces: Vec<_> = (0..source.len() / 100)
            .map(|i| {
                let local = libc::iovec {
                    iov_base: target[i * 100..].as_mut_ptr().cast(),
                    iov_len: 100,
                };
                let range = RemoteRange {
                    address: source[i * 100..].as_ptr() as u64,
                    heap: None,
                    region: None,
                    len: 100,
                };
                (local, remote_iovec(&range))
            })
            .collect();
        transfer_all(Direction::Read, std::process::id() as i32, &pieces).unwrap();
        assert_eq!(source, target);
    }

    #[test]
    fn an_address_that_is_not_mapped_is_an_error() {
        let mut target = [0u8; 16];
        let local = (target.as_mut_ptr(), target.len());
        let pid = std::process::id() as i32;
        let error =
            transfer_one::<CALL_MAX>(Direction::Read, pid, local, &range_at(16, 16)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    /// More than a call takes, and ends that differ.
    #[test]
    fn one_pair_goes_whole_and_no_further_than_its_shorter_end() {
        let source: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        let pid = std::process::id() as i32;
        for (room, len) in [(source.len(), source.len()), (100, 300), (300, 100), (0, 8)] {
            for direction in [Direction::Read, Direction::Write] {
                let mut target = vec![0xaa; source.len()];
                let (from, to) = (source.as_ptr(), target.as_mut_ptr());
                let (local, remote) = match direction {
                    Direction::Read => (to, from.cast_mut()),
                    Direction::Write => (from.cast_mut(), to),
                };
                let range = range_at(remote.expose_provenance() as u64, len as u64);
                transfer_one::<4096>(direction, pid, (local, room), &range).expect("moved");
                let moved = room.min(len);
                assert_eq!(target[..moved], source[..moved]);
                assert!(target[moved..].iter().all(|&byte| byte == 0xaa));
            }
        }
    }

    fn range_at(address: u64, len: u64) -> RemoteRange {
        RemoteRange {
            address,
            heap: None,
            region: None,
            len,
        }
    }

    #[test]
    fn a_process_that_does_not_exist_is_explained() {
        let error = transfer_all(
            Direction::Read,
            i32::MAX,
            &[(
                libc::iovec {
                    iov_base: [0u8; 8].as_mut_ptr().cast(),
                    iov_len: 8,
                },
                libc::iovec {
                    iov_base: std::ptr::null_mut(),
                    iov_len: 8,
                },
            )],
        )
        .unwrap_err();
        assert!(
            explain("process_vm_readv", 3, &error)
                .to_string()
                .contains("rank 3")
        );
    }
}
