// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices of this host, by libibverbs.
//!
//! # Safety
//!
//! Each object is a pointer that the library gave, and holds those that it was made from. It is given back once, in its
//! drop, before they are. The library's objects may be used by several threads at once. An event that names an object
//! is read before it is acknowledged, and the object's end waits for that.
#![allow(unsafe_code, reason = "calls of libibverbs")]

mod objects;
mod pairs;
mod post;
mod query;

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_SRQ_LIMIT,
    Library, ibv_srq_attr,
};

use crate::provider::{
    Access, Address, Change, Event, Finished, Keys, Kind, Limits, PairSpec, Path, Piece, Port,
    Provider, Request,
};
pub use objects::{AddressHandleOf, Channel, Completions, Context, DomainOf, Memory};
use objects::{List, made, zero};
pub use pairs::{PairOf, ReceivesOf, Shared};
pub use verbs_sys::Missing;

/// libibverbs.
#[derive(Clone, Copy)]
pub struct Verbs {
    library: &'static Library,
}

impl std::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verbs")
    }
}

impl Verbs {
    /// The library, which is loaded now if it was not before.
    ///
    /// # Errors
    ///
    /// What is missing, and what would help.
    pub fn load() -> Result<Self, &'static Missing> {
        Ok(Self {
            library: Library::load()?,
        })
    }
}

// SAFETY: the kernel and the device keep to what was registered and posted. A pair's drop destroys it, after which the
// device touches nothing that was posted to it. The same holds for a queue of receives, which its pairs keep alive.
unsafe impl Provider for Verbs {
    type Context = Context;
    type Domain = DomainOf;
    type Memory = Memory;
    type Channel = Channel;
    type Completions = Completions;
    type Receives = ReceivesOf;
    type QueuePair = PairOf;
    type AddressHandle = AddressHandleOf;
    type Shared = Shared;

    fn devices(&self) -> io::Result<Vec<String>> {
        let list = List::get(self.library)?;
        Ok(list.names().map(|(_, name)| name).collect())
    }

    fn open(&self, name: &str) -> io::Result<Context> {
        let list = List::get(self.library)?;
        let found = list.names().find(|(_, found)| found == name);
        let (device, _) = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        Context::open(self.library, device)
    }

    fn limits(context: &Context) -> io::Result<Limits> {
        query::limits(context)
    }

    fn port(context: &Context, port: u8) -> io::Result<Port> {
        query::port(context, port)
    }

    fn addresses(context: &Context, port: u8) -> io::Result<Vec<Address>> {
        query::addresses(context, port)
    }

    fn events(context: &Context) -> BorrowedFd<'_> {
        context.events()
    }

    fn next_event(context: &Context) -> io::Result<Option<Event>> {
        query::next_event(context)
    }

    fn domain(context: &Context) -> io::Result<DomainOf> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().ibv_alloc_pd)(context.raw()) };
        Ok(DomainOf(Arc::new(objects::DomainCore {
            raw: made(raw)?,
            context: context.clone(),
        })))
    }

    unsafe fn register(
        domain: &DomainOf,
        at: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> io::Result<Memory> {
        let mut flags = IBV_ACCESS_LOCAL_WRITE;
        if access.remote_read {
            flags |= IBV_ACCESS_REMOTE_READ;
        }
        if access.remote_write {
            flags |= IBV_ACCESS_REMOTE_WRITE;
        }
        let library = domain.context().library();
        // SAFETY: the domain is open; the caller answers for the memory.
        let raw = unsafe { (library.ibv_reg_mr)(domain.raw(), at.as_ptr().cast(), length, flags) };
        Ok(Memory {
            raw: made(raw)?,
            domain: domain.clone(),
        })
    }

    fn keys(memory: &Memory) -> Keys {
        memory.keys()
    }

    fn channel(context: &Context) -> io::Result<Channel> {
        Channel::new(context)
    }

    fn descriptor(channel: &Channel) -> BorrowedFd<'_> {
        channel.descriptor()
    }

    fn take_wakes(channel: &Channel) -> io::Result<u32> {
        channel.take_wakes()
    }

    fn completions(
        context: &Context,
        length: u32,
        channel: Option<&Channel>,
    ) -> io::Result<Completions> {
        Completions::new(context, length, channel)
    }

    fn lengthen(queue: &Completions, length: u32) -> io::Result<()> {
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        // SAFETY: the queue is open.
        zero(unsafe { (queue.library().ibv_resize_cq)(queue.raw(), length) })
    }

    fn arm(queue: &Completions) -> io::Result<()> {
        // SAFETY: the queue is open.
        zero(unsafe { verbs_sys::ibv_req_notify_cq(queue.raw(), 0) })
    }

    fn poll(queue: &Completions, into: &mut [Finished]) -> io::Result<usize> {
        post::poll(queue, into)
    }

    fn receives(
        domain: &DomainOf,
        length: u32,
        shared: Option<(&Shared, &Completions)>,
    ) -> io::Result<ReceivesOf> {
        ReceivesOf::new(domain, length, shared)
    }

    fn report_below(receives: &ReceivesOf, limit: u32) -> io::Result<()> {
        let mut attr = ibv_srq_attr {
            srq_limit: limit,
            ..ibv_srq_attr::default()
        };
        // SAFETY: the queue is open, the structure whole.
        zero(unsafe {
            (receives.library().ibv_modify_srq)(receives.raw(), &raw mut attr, IBV_SRQ_LIMIT)
        })
    }

    fn number_of_receives(receives: &ReceivesOf) -> io::Result<u32> {
        // SAFETY: the queue is open.
        unsafe { verbs_sys::ibv_get_srq_num(receives.raw()) }.map_err(io::Error::from_raw_os_error)
    }

    fn shared(context: &Context, file: Option<BorrowedFd<'_>>) -> io::Result<Shared> {
        Shared::open(context, file)
    }

    fn pair(domain: &DomainOf, spec: &PairSpec<'_, Self>) -> io::Result<(PairOf, u32)> {
        PairOf::new(domain, spec)
    }

    fn open_pair(
        domain: &DomainOf,
        shared: &Shared,
        completions: &Completions,
        number: u32,
    ) -> io::Result<PairOf> {
        PairOf::open(domain, shared, completions, number)
    }

    fn number(pair: &PairOf) -> u32 {
        pair.number()
    }

    fn change(pair: &PairOf, kind: Kind, change: &Change) -> io::Result<()> {
        query::change(pair, kind, change)
    }

    fn address_handle(domain: &DomainOf, path: &Path) -> io::Result<AddressHandleOf> {
        let mut attr = query::path(path);
        // SAFETY: the domain is open, the structure whole.
        let raw =
            unsafe { (domain.context().library().ibv_create_ah)(domain.raw(), &raw mut attr) };
        Ok(AddressHandleOf {
            raw: made(raw)?,
            domain: domain.clone(),
        })
    }

    unsafe fn send(pair: &PairOf, request: &Request<'_, Self>) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { post::send(pair, request) }
    }

    unsafe fn receive(pair: &PairOf, id: u64, pieces: &[Piece]) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { post::receive(pair, id, pieces) }
    }

    unsafe fn receive_shared(receives: &ReceivesOf, id: u64, pieces: &[Piece]) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { post::receive_shared(receives, id, pieces) }
    }
}

/// A name that the library gave.
fn text(name: *const std::ffi::c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the library's names end with a zero, and stay while they are copied.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}
