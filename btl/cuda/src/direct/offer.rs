// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a send tells the receiver of where its bytes are in a device, in so many bytes ([`BYTES`]).
//!
//! There are two kinds. One names an allocation to another process: by the driver's handle, or by the number of a
//! descriptor. The other names a buffer to a receive of this process. Each form begins with its own mark, and none is
//! taken for another.
//!
//! # Safety
//! Addresses are numbers that the driver looks up; the place for its answer is ours.
#![allow(unsafe_code, reason = "calls of the driver")]

use super::export::{self, Export};
use super::handle::{HANDLE, Handle};
use super::{identity, is_on, reason};
use crate::copies::in_process;
use crate::error::check;
use crate::memory::{self, Allocation, Kind};
use crate::pipeline::lock;
use crate::presence::driver;
use cuda_sys::{CUipcMemHandle, Library};
use onecopy_shm::sync::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes of an offer.
pub const BYTES: usize = 128;

/// How offers to receives of this process begin.
const OWN: u64 = u64::from_le_bytes(*b"ocown\0\0\x01");

/// The part of an allocation that another process has offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The allocation's number in its process. Of physical memory that of its export.
    pub(super) id: u64,
    /// Its first address there, and its bytes.
    pub(super) base: u64,
    pub(super) size: u64,
    /// Where in it the message begins.
    pub(super) offset: u64,
    /// The device's number in the world.
    pub(super) device: [u8; 16],
    pub(super) handle: Handle,
}

fn word(bytes: &[u8; BYTES], index: usize) -> u64 {
    let (words, _) = bytes.as_chunks();
    words.get(index).map_or(0, |word| u64::from_le_bytes(*word))
}

impl Shown {
    /// The form in which it travels.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mark = self.handle.mark();
        let words = [mark, self.id, self.base, self.size, self.offset];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let (number, handle) = self.handle.encode();
        bytes[40..56].copy_from_slice(&self.device);
        bytes[56..64].copy_from_slice(&number.to_le_bytes());
        bytes[BYTES - HANDLE..].copy_from_slice(&handle);
        bytes
    }

    /// What another process has written, if it has this form. `len`: the bytes that are wanted.
    #[must_use]
    pub fn decode(bytes: &[u8], len: u64) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (mut device, mut handle) = ([0; 16], [0; HANDLE]);
        device.copy_from_slice(&bytes[40..56]);
        handle.copy_from_slice(&bytes[BYTES - HANDLE..]);
        let shown = Self {
            id: word(bytes, 1),
            base: word(bytes, 2),
            size: word(bytes, 3),
            offset: word(bytes, 4),
            device,
            handle: Handle::decode(word(bytes, 0), word(bytes, 7), handle)?,
        };
        let inside = shown.offset.checked_add(len)? <= shown.size;
        shown.base.checked_add(shown.size)?;
        inside.then_some(shown)
    }
}

/// Who reads a buffer of this process.
#[derive(Debug, Default)]
struct Reads {
    count: usize,
    /// Nobody more may begin.
    closed: bool,
}

/// Buffers that are offered within this process, by the number that is in the offer.
static OFFERED: Mutex<Vec<(u64, Arc<Mutex<Reads>>)>> = Mutex::new(Vec::new());

/// A buffer of this process that is read until this is dropped.
#[derive(Debug)]
pub(super) struct Reading(Arc<Mutex<Reads>>);

impl Reading {
    /// The buffer that an offer names, and its address.
    pub(super) fn of(offer: &[u8], len: u64) -> Option<(Self, u64)> {
        let bytes: &[u8; BYTES] = offer.try_into().ok()?;
        if word(bytes, 0) != OWN || word(bytes, 3) < len {
            return None;
        }
        let key = word(bytes, 1);
        let offered = lock(&OFFERED);
        let (_, reads) = offered.iter().find(|(known, _)| *known == key)?;
        let mut open = lock(reads);
        if open.closed {
            return None;
        }
        open.count += 1;
        drop(open);
        Some((Self(Arc::clone(reads)), word(bytes, 2)))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        lock(&self.0).count -= 1;
    }
}

/// What other processes are told of a buffer.
#[derive(Debug)]
struct Told {
    bytes: [u8; BYTES],
    /// What is open for that. It ends with the message.
    #[expect(dead_code, reason = "kept, not used")]
    export: Option<Arc<Export>>,
}

/// The buffer of a send, as it may be offered.
#[derive(Debug)]
pub struct Offering {
    address: u64,
    len: u64,
    allocation: Allocation,
    /// What other processes are told, once somebody has asked for it.
    shown: OnceLock<Result<Told, Arc<str>>>,
    /// Its number, and who reads it. None: it was not offered within this process.
    own: Mutex<Option<(u64, Arc<Mutex<Reads>>)>>,
}

impl Offering {
    /// The buffer of `len` bytes at an address, if all of it lies in one allocation of a device.
    #[must_use]
    pub fn of(address: u64, len: u64) -> Option<Self> {
        if !is_on() {
            return None;
        }
        driver()?;
        let allocation = memory::of(address).ok()??;
        if allocation.kind != Kind::Device || allocation.rest(address) < len {
            return None;
        }
        Some(Self {
            address,
            len,
            allocation,
            shown: OnceLock::new(),
            own: Mutex::default(),
        })
    }

    /// Lets the driver show it to other processes, which a message within this process does not need. That may take a
    /// while, so it is done before the engine has the message.
    pub fn show(&self) {
        self.shown.get_or_init(|| self.told());
    }

    /// What other processes of the node are told. An error: why they are told nothing.
    ///
    /// # Errors
    ///
    /// That reason.
    pub fn shown(&self) -> Result<&[u8; BYTES], Arc<str>> {
        match self.shown.get() {
            Some(Ok(told)) => Ok(&told.bytes),
            Some(Err(why)) => Err(Arc::clone(why)),
            None => Err("nobody has asked the driver to show it".into()),
        }
    }

    fn told(&self) -> Result<Told, Arc<str>> {
        let driver = in_process().map_err(|error| reason(&error))?;
        let (allocation, address) = (&self.allocation, self.address);
        let device = identity::of(driver, allocation.device).ok_or_else(|| {
            let device = allocation.device;
            Arc::<str>::from(format!("the driver tells no number of device {device}"))
        })?;
        let (id, base, size, handle, export) = match allocation.is_of_a_context() {
            true => {
                let handle = Handle::Ipc(handle_of(driver, allocation)?);
                (allocation.id, allocation.base, allocation.len, handle, None)
            }
            false => {
                let shown = export::of(driver, allocation, (address, self.len));
                let it = shown.map_err(|error| reason(&error))?;
                (it.id, it.base, it.size, it.handle, Some(it.export))
            }
        };
        let shown = Shown {
            id,
            base,
            size,
            offset: address - base,
            device,
            handle,
        };
        let bytes = shown.encode();
        Ok(Told { bytes, export })
    }

    /// What a receive of this process is told.
    #[must_use]
    pub fn own(&self) -> [u8; BYTES] {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mut own = lock(&self.own);
        let (key, _) = own.get_or_insert_with(|| {
            let key = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            let reads = Arc::<Mutex<Reads>>::default();
            lock(&OFFERED).push((key, Arc::clone(&reads)));
            (key, reads)
        });
        let mut bytes = [0; BYTES];
        let words = [OWN, *key, self.address, self.len];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Nobody of this process begins to read it any more. Gives whether nobody does.
    #[must_use]
    pub fn close(&self) -> bool {
        match &*lock(&self.own) {
            None => true,
            Some((_, reads)) => {
                let mut reads = lock(reads);
                reads.closed = true;
                reads.count == 0
            }
        }
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        if let Some((key, _)) = &*lock(&self.own) {
            lock(&OFFERED).retain(|(known, _)| known != key);
        }
    }
}

/// A handle, or why there is none.
type Given = Result<[u8; HANDLE], Arc<str>>;

/// What was given for allocations, by their numbers.
static HANDLES: Mutex<VecDeque<(u64, Given)>> = Mutex::new(VecDeque::new());
/// More are not kept. As in `memory.rs`, for the same reason.
const MOST: usize = 256;

/// The handle by which other processes open an allocation. An error: why the driver does not show it.
fn handle_of(driver: &'static Library, allocation: &Allocation) -> Given {
    let known = lock(&HANDLES)
        .iter()
        .find(|(id, _)| *id == allocation.id)
        .map(|(_, handle)| handle.clone());
    if let Some(handle) = known {
        return handle;
    }
    let handle = get_handle(driver, allocation).map_err(|error| reason(&error));
    let mut handles = lock(&HANDLES);
    if handles.len() >= MOST {
        handles.pop_front();
    }
    handles.push_back((allocation.id, handle.clone()));
    handle
}

/// Asks the driver for a handle.
pub(crate) fn get_handle(
    driver: &'static Library,
    allocation: &Allocation,
) -> Result<[u8; HANDLE], crate::Error> {
    let base = allocation.base;
    let _entered = allocation.context(driver)?.enter(driver)?;
    let mut handle = CUipcMemHandle {
        reserved: [0; HANDLE],
    };
    // SAFETY: the place for the answer is ours; the driver looks the address up.
    let code = unsafe { (driver.cuIpcGetMemHandle)(&raw mut handle, base) };
    check(driver, code, "cuIpcGetMemHandle", || {
        format!("the allocation at {base:#x}")
    })?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        let mut handle = [0; HANDLE];
        handle.iter_mut().zip(1..).for_each(|(byte, to)| *byte = to);
        Shown {
            id: 7,
            base: 1 << 40,
            size: 3 << 20,
            offset: 1 << 20,
            device: *b"0123456789abcdef",
            handle: Handle::Ipc(handle),
        }
    }

    /// One of each form.
    fn all_forms() -> [Shown; 3] {
        let Handle::Ipc(data) = shown().handle else {
            panic!("another form")
        };
        let other = |handle| Shown { handle, ..shown() };
        [
            shown(),
            other(Handle::Memory { fd: 77 }),
            other(Handle::Pool { fd: 77, data }),
        ]
    }

    #[test]
    fn an_offer_comes_back_as_it_was_made() {
        for shown in all_forms() {
            let offer = shown.encode();
            assert_eq!(Shown::decode(&offer, 2 << 20), Some(shown));
        }
    }

    #[test]
    fn what_is_no_offer_of_so_many_bytes_is_declined() {
        let offer = shown().encode();
        assert_eq!(Shown::decode(&offer, (2 << 20) + 1), None, "behind the end");
        assert_eq!(Shown::decode(&offer, u64::MAX), None, "an end that wraps");
        for len in [0, 1, BYTES - 1] {
            assert_eq!(Shown::decode(&offer[..len], 1), None, "{len} bytes");
        }
        assert_eq!(Shown::decode(&[offer, offer].concat(), 1), None, "too long");
        for byte in (0..8).chain(56..64) {
            let mut other = offer;
            other[byte] ^= 1;
            assert_eq!(Shown::decode(&other, 1), None, "byte {byte}");
        }
        let [_, memory, pool] = all_forms().map(|shown| shown.encode());
        for byte in (0..8).chain(60..128) {
            let mut other = memory;
            other[byte] ^= 0x80;
            assert_eq!(Shown::decode(&other, 1), None, "byte {byte}");
        }
        for byte in (0..8).chain(60..64) {
            let mut other = pool;
            other[byte] |= 0x80;
            assert_eq!(Shown::decode(&other, 1), None, "byte {byte}");
        }
        let wraps = Shown {
            base: u64::MAX - 5,
            ..shown()
        };
        assert_eq!(Shown::decode(&wraps.encode(), 1), None, "a base that wraps");
    }

    fn offering(len: u64) -> Offering {
        Offering {
            address: 4096,
            len,
            allocation: memory::allocation(1, 4096, len),
            shown: OnceLock::new(),
            own: Mutex::default(),
        }
    }

    #[test]
    fn a_buffer_is_settled_when_nobody_of_the_process_reads_it() {
        let buffer = offering(100);
        assert!(buffer.close(), "it was never offered");
        let buffer = offering(100);
        let offer = buffer.own();
        assert!(Reading::of(&offer, 101).is_none(), "longer than it");
        assert_eq!(
            Shown::decode(&offer, 1),
            None,
            "no offer of another process"
        );
        assert!(
            Reading::of(&shown().encode(), 1).is_none(),
            "nor the other way"
        );
        let (first, address) = Reading::of(&offer, 100).expect("a reader");
        assert_eq!(address, 4096);
        let (second, _) = Reading::of(&offer, 1).expect("another reader");
        assert!(!buffer.close());
        assert!(Reading::of(&offer, 1).is_none(), "it is closed");
        drop(first);
        assert!(!buffer.close());
        drop(second);
        assert!(buffer.close());
        drop(buffer);
        assert!(Reading::of(&offer, 1).is_none(), "it is gone");
    }
}
