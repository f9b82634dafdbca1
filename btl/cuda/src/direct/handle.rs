// SPDX-License-Identifier: MIT OR Apache-2.0
//! By what another process opens an allocation, in the three forms of an offer.

use cuda_sys::CUipcMemHandle;

/// Bytes of the driver's handle. What names an allocation of a pool is as long.
pub(super) const HANDLE: usize = size_of::<CUipcMemHandle>();

/// How offers to other processes begin: a name, and the number of the form.
const SHOWN: u64 = u64::from_le_bytes(*b"ocshow\0\x01");
/// The same, of physical memory behind virtual addresses, and of a pool's allocation.
const MEMORY: u64 = u64::from_le_bytes(*b"ocvirt\0\x01");
const POOL: u64 = u64::from_le_bytes(*b"ocpool\0\x01");
/// By what another process opens an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handle {
    /// The driver's own handle.
    Ipc([u8; HANDLE]),
    /// A descriptor of physical memory, by its number in the owner's process.
    Memory { fd: i32 },
    /// The same of a pool, and what the driver says of the allocation.
    Pool { fd: i32, data: [u8; HANDLE] },
}

impl Handle {
    pub(super) fn mark(&self) -> u64 {
        match self {
            Self::Ipc(_) => SHOWN,
            Self::Memory { .. } => MEMORY,
            Self::Pool { .. } => POOL,
        }
    }

    /// The descriptor's number, if it is by one.
    pub(super) fn fd(&self) -> Option<i32> {
        match self {
            Self::Ipc(_) => None,
            Self::Memory { fd } | Self::Pool { fd, .. } => Some(*fd),
        }
    }

    /// The form in which it travels: a number, and bytes.
    pub(super) fn encode(&self) -> (u64, [u8; HANDLE]) {
        let number = self.fd().map_or(0, |fd| u64::from(fd.unsigned_abs()));
        match self {
            Self::Ipc(bytes) | Self::Pool { data: bytes, .. } => (number, *bytes),
            Self::Memory { .. } => (number, [0; HANDLE]),
        }
    }

    pub(super) fn decode(mark: u64, number: u64, bytes: [u8; HANDLE]) -> Option<Self> {
        let fd = i32::try_from(number).ok()?;
        match mark {
            SHOWN if fd == 0 => Some(Self::Ipc(bytes)),
            MEMORY if bytes == [0; HANDLE] => Some(Self::Memory { fd }),
            POOL => Some(Self::Pool { fd, data: bytes }),
            _ => None,
        }
    }
}
