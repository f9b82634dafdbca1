// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's objects, each with an owner.
//!
//! # Safety
//!
//! See [`super`].
#![allow(unsafe_code, reason = "calls of libibverbs")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use verbs_sys::{
    Library, ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd,
};

use super::{Verbs, text};
use crate::provider::Keys;

macro_rules! of_no_thread {
    ($($name:ident),*) => {$(
        // SAFETY: the library's objects may be used and given back by any thread, several at once.
        unsafe impl Send for $name {}
        // SAFETY: as for Send.
        unsafe impl Sync for $name {}
    )*};
}
pub(super) use of_no_thread;
of_no_thread!(
    ContextCore,
    DomainCore,
    Memory,
    ChannelCore,
    CompletionsCore,
    AddressHandleOf
);

/// A pointer that was made, or why not.
pub(super) fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// A call whose code is zero, or the error.
pub(super) fn zero(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some calls set errno, others return it.
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// The list of devices.
pub(super) struct List {
    library: &'static Library,
    raw: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    pub(super) fn get(library: &'static Library) -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the number can be written.
        let raw = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        Ok(Self {
            library,
            raw: made(raw)?,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (*mut ibv_device, String)> + '_ {
        // SAFETY: the list has so many entries, and stays as long as this value.
        let devices = unsafe { std::slice::from_raw_parts(self.raw.as_ptr(), self.count) };
        devices.iter().map(|&device| {
            // SAFETY: a device of the list.
            let name = unsafe { (self.library.ibv_get_device_name)(device) };
            (device, text(name))
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is given back once.
        unsafe { (self.library.ibv_free_device_list)(self.raw.as_ptr()) };
    }
}

/// An open device.
#[derive(Clone, Debug)]
pub struct Context(Arc<ContextCore>);

#[derive(Debug)]
struct ContextCore {
    library: Verbs,
    raw: NonNull<ibv_context>,
}

/// A descriptor of the library's that must not wait.
fn without_waiting(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a call on a descriptor touches no memory.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: as above.
    let set = unsafe {
        libc::fcntl(
            descriptor.as_raw_fd(),
            libc::F_SETFL,
            flags | libc::O_NONBLOCK,
        )
    };
    if flags < 0 || set < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

impl Context {
    pub(super) fn open(library: &'static Library, device: *mut ibv_device) -> io::Result<Self> {
        // SAFETY: the device is of a list that still exists.
        let raw = unsafe { (library.ibv_open_device)(device) };
        let context = Self(Arc::new(ContextCore {
            library: Verbs { library },
            raw: made(raw)?,
        }));
        without_waiting(context.events())?;
        Ok(context)
    }

    pub(super) fn library(&self) -> &'static Library {
        self.0.library.library
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    pub(super) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let descriptor = unsafe { (*self.raw()).async_fd };
        // SAFETY: the descriptor is the context's own, as long as that is open.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl Drop for ContextCore {
    fn drop(&mut self) {
        // SAFETY: nothing made from it exists any more: all of it holds the context.
        let _ = unsafe { (self.library.library.ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub struct DomainOf(pub(super) Arc<DomainCore>);

#[derive(Debug)]
pub(super) struct DomainCore {
    pub(super) raw: NonNull<ibv_pd>,
    pub(super) context: Context,
}

impl DomainOf {
    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Context {
        &self.0.context
    }
}

impl Drop for DomainCore {
    fn drop(&mut self) {
        // SAFETY: nothing made from it exists any more.
        let _ = unsafe { (self.context.library().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Registered memory.
#[derive(Debug)]
pub struct Memory {
    pub(super) raw: NonNull<ibv_mr>,
    pub(super) domain: DomainOf,
}

impl Memory {
    pub(super) fn keys(&self) -> Keys {
        // SAFETY: the registration exists, and its keys do not change.
        let memory = unsafe { self.raw.as_ref() };
        Keys {
            own: memory.lkey,
            peers: memory.rkey,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the registration is given back once.
        let _ = unsafe { (self.domain.context().library().ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}

/// What tells of completions.
#[derive(Clone, Debug)]
pub struct Channel(Arc<ChannelCore>);

#[derive(Debug)]
struct ChannelCore {
    raw: NonNull<ibv_comp_channel>,
    context: Context,
}

impl Channel {
    pub(super) fn new(context: &Context) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().ibv_create_comp_channel)(context.raw()) };
        let channel = Self(Arc::new(ChannelCore {
            raw: made(raw)?,
            context: context.clone(),
        }));
        without_waiting(channel.descriptor())?;
        Ok(channel)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists.
        let descriptor = unsafe { self.0.raw.as_ref() }.fd;
        // SAFETY: the descriptor is the channel's own, as long as that exists.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    pub(super) fn take_wakes(&self) -> io::Result<u32> {
        let library = self.0.context.library();
        let mut count = 0;
        loop {
            let (mut queue, mut word) = (null_mut(), null_mut());
            // SAFETY: the channel exists, both pointers can be written.
            let code = unsafe {
                (library.ibv_get_cq_event)(self.0.raw.as_ptr(), &raw mut queue, &raw mut word)
            };
            if code != 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(count),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(error),
                };
            }
            // SAFETY: the queue of an event that is not yet acknowledged exists: its end waits for that.
            unsafe { (library.ibv_ack_cq_events)(queue, 1) };
            count += 1;
        }
    }
}

impl Drop for ChannelCore {
    fn drop(&mut self) {
        // SAFETY: no queue uses it any more: they hold it.
        let _ = unsafe { (self.context.library().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A queue of completions.
#[derive(Clone, Debug)]
pub struct Completions(Arc<CompletionsCore>);

#[derive(Debug)]
struct CompletionsCore {
    raw: NonNull<ibv_cq>,
    context: Context,
    _channel: Option<Channel>,
}

impl Completions {
    pub(super) fn new(
        context: &Context,
        length: u32,
        channel: Option<&Channel>,
    ) -> io::Result<Self> {
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        let raw_channel = channel.map_or(null_mut(), |channel| channel.0.raw.as_ptr());
        // SAFETY: context and channel are open.
        let raw = unsafe {
            (context.library().ibv_create_cq)(context.raw(), length, null_mut(), raw_channel, 0)
        };
        let core = CompletionsCore {
            raw: made(raw)?,
            context: context.clone(),
            _channel: channel.cloned(),
        };
        Ok(Self(Arc::new(core)))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.0.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.0.context.library()
    }
}

impl Drop for CompletionsCore {
    fn drop(&mut self) {
        // SAFETY: no pair uses it any more: they hold it. Its events are acknowledged where they are taken; one that is
        // still in the channel does not count.
        let _ = unsafe { (self.context.library().ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

/// A peer's address.
#[derive(Debug)]
pub struct AddressHandleOf {
    pub(super) raw: NonNull<ibv_ah>,
    pub(super) domain: DomainOf,
}

impl Drop for AddressHandleOf {
    fn drop(&mut self) {
        // SAFETY: the address is given back once.
        let _ = unsafe { (self.domain.context().library().ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}
