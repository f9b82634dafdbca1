// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of a buffer of which the driver knows nothing: memory of the host, or what was a device's and is freed.
//!
//! To touch what was a device's would end the process. So the kernel copies, which refuses that as an error.
//!
//! # Safety
//! The kernel checks the program's addresses itself. What it must not check is a chunk of ours.
#![allow(unsafe_code, reason = "memory of the program")]

use crate::error::Error;
use crate::lane::Direction;
use crate::staging::NO_MEMORY_REMEDY;
use libc::iovec;
use onecopy_shm::copy::{Kernel, copy};
use std::io;

/// One call of the kernel that moves bytes between memory of ours and the program's at `address`; how many.
///
/// # Safety
/// `ours` is memory of so many bytes, alone for as long. The program lets its own be read, or written.
///
/// # Errors
///
/// Those of `process_vm_readv` and `process_vm_writev`: `EFAULT` where there is no such memory of the program.
pub(crate) unsafe fn transfer(
    direction: Direction,
    ours: *mut u8,
    address: u64,
    len: usize,
) -> io::Result<usize> {
    let piece = |base: *mut u8| iovec {
        iov_base: base.cast(),
        iov_len: len,
    };
    let program = std::ptr::with_exposed_provenance_mut(address as usize);
    let (local, remote) = (piece(ours), piece(program));
    let call = match direction {
        Direction::ToHost => libc::process_vm_readv,
        Direction::ToDevice => libc::process_vm_writev,
    };
    // SAFETY: no argument.
    let own = unsafe { libc::getpid() };
    // SAFETY: the lists have one entry each; ours is by the contract of this function, the kernel checks the other.
    let moved = unsafe { call(own, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Copies between the host's memory `ours` and the program's at `address`.
///
/// # Safety
/// As [`transfer`].
///
/// # Errors
///
/// There is no such memory of the program.
pub(crate) unsafe fn copy_part(
    direction: Direction,
    ours: *mut u8,
    address: u64,
    len: usize,
) -> Result<(), Error> {
    let mut done = 0;
    while done < len {
        let (ours, address, left) = (ours.wrapping_add(done), address + done as u64, len - done);
        // SAFETY: the rest of what this function was given.
        let error = match unsafe { transfer(direction, ours, address, left) } {
            Ok(0) => return Err(gone(address, left)),
            Ok(moved) => {
                done += moved;
                continue;
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EFAULT) => return Err(gone(address, left)),
            // No such call here, or a filter forbids it: the program's word is all there is.
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
                // SAFETY: by the contract of this function.
                unsafe { copy_known(direction, ours, address, left) };
                return Ok(());
            }
            _ => {
                let about = format!("{left} bytes at {address:#x}");
                return Err(Error::ours(
                    "a copy",
                    about,
                    &error.to_string(),
                    NO_MEMORY_REMEDY,
                ));
            }
        }
    }
    Ok(())
}

/// As [`copy_part`], of memory that is known to be there.
///
/// # Safety
/// As [`transfer`]; the program's memory can be read, or written.
pub(crate) unsafe fn copy_known(direction: Direction, ours: *mut u8, address: u64, len: usize) {
    let program = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    let (to, from) = match direction {
        Direction::ToHost => (ours, program.cast_const()),
        Direction::ToDevice => (program, ours.cast_const()),
    };
    // SAFETY: by the contract of this function.
    unsafe { copy(Kernel::Memcpy, to, from, len) };
}

fn gone(address: u64, len: usize) -> Error {
    Error::ours(
        "a copy",
        format!("{len} bytes at {address:#x}"),
        "neither the host nor a device has memory there",
        "free memory, and end contexts, when the messages of it are complete",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_shm::layout::PAGE;

    #[test]
    fn memory_of_the_host_is_copied_and_what_is_none_is_an_error() {
        let text = b"some bytes of the program".to_vec();
        let mut ours = vec![0u8; text.len()];
        let address = text.as_ptr().expose_provenance() as u64;
        // SAFETY: both are vectors of so many bytes.
        unsafe { copy_part(Direction::ToHost, ours.as_mut_ptr(), address, text.len()) }
            .expect("read");
        assert_eq!(ours, text);
        let mut target = vec![0u8; text.len()];
        let address = target.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as above.
        unsafe { copy_part(Direction::ToDevice, ours.as_mut_ptr(), address, text.len()) }
            .expect("written");
        assert_eq!(target, text);
    }

    /// As what was a device's: reserved, and nobody's. Also where that begins within the buffer.
    #[test]
    fn what_nobody_may_touch_is_an_error_that_names_it() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the first page of that memory.
        let code = unsafe { libc::mprotect(at, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(code, 0);
        let mut ours = vec![0u8; 2 * PAGE];
        let address = at.expose_provenance() as u64;
        for direction in [Direction::ToHost, Direction::ToDevice] {
            for (start, bad) in [(0, PAGE), (PAGE, PAGE), (PAGE + 8, PAGE + 8)] {
                let from = address + start as u64;
                // SAFETY: ours has so many bytes.
                let copied =
                    unsafe { copy_part(direction, ours.as_mut_ptr(), from, 2 * PAGE - start) };
                let text = copied.expect_err("nobody's").to_string();
                assert!(
                    text.contains(&format!("{:#x}", address + bad as u64)),
                    "{text}"
                );
            }
        }
        // SAFETY: the memory that was mapped above.
        unsafe { libc::munmap(at, 2 * PAGE) };
    }
}
