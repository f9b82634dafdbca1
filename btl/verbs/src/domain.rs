// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open device, its domain, and what is made of it.
//!
//! # Safety
//!
//! The one unsafe step of our own is to register pages that a region owns. They stay until the registration has ended,
//! and nobody refers to them (see [`crate::memory`]). Memory of the program is registered by an unsafe call.
#![allow(unsafe_code, reason = "registers memory")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::{Pages, Region, Registered};
use crate::provider::{Access, Address, Event, Limits, Path, Port, Provider};

/// An open device.
#[derive(Debug)]
pub struct Device<P: Provider> {
    name: Arc<str>,
    context: P::Context,
    limits: Arc<Limits>,
}

impl<P: Provider> Clone for Device<P> {
    fn clone(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            context: self.context.clone(),
            limits: Arc::clone(&self.limits),
        }
    }
}

impl<P: Provider> Device<P> {
    /// Opens a device by its name.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn open(provider: &P, name: &str) -> Result<Self> {
        let context = provider
            .open(name)
            .map_err(Error::of("ibv_open_device", name))?;
        let limits = P::limits(&context).map_err(Error::of("ibv_query_device", name))?;
        Ok(Self {
            name: name.into(),
            context,
            limits: Arc::new(limits),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it can do.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A port, as it is now.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn port(&self, port: u8) -> Result<Port> {
        P::port(&self.context, port).map_err(Error::of(
            "ibv_query_port",
            format!("{} port {port}", self.name),
        ))
    }

    /// A port's addresses.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn addresses(&self, port: u8) -> Result<Vec<Address>> {
        let object = format!("{} port {port}", self.name);
        P::addresses(&self.context, port).map_err(Error::of("ibv_query_gid_ex", object))
    }

    /// Readable when something has happened on the device.
    #[must_use]
    pub fn events(&self) -> BorrowedFd<'_> {
        P::events(&self.context)
    }

    /// What has happened, if anything.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn next_event(&self) -> Result<Option<Event>> {
        P::next_event(&self.context).map_err(Error::of("ibv_get_async_event", &*self.name))
    }

    /// A domain.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn domain(&self) -> Result<Domain<P>> {
        let raw = P::domain(&self.context).map_err(Error::of("ibv_alloc_pd", &*self.name))?;
        Ok(Domain {
            device: self.clone(),
            raw,
        })
    }

    /// A domain whose receives processes share, by a file that all of them open.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` where the device has none.
    pub fn shared(&self, file: Option<BorrowedFd<'_>>) -> Result<P::Shared> {
        P::shared(&self.context, file).map_err(Error::of("ibv_open_xrcd", &*self.name))
    }

    pub(crate) fn context(&self) -> &P::Context {
        &self.context
    }
}

/// A domain: memory, queues and pairs of one domain work together.
#[derive(Debug)]
pub struct Domain<P: Provider> {
    device: Device<P>,
    raw: P::Domain,
}

impl<P: Provider> Clone for Domain<P> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            raw: self.raw.clone(),
        }
    }
}

impl<P: Provider> Domain<P> {
    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device<P> {
        &self.device
    }

    pub(crate) fn raw(&self) -> &P::Domain {
        &self.raw
    }

    /// New registered memory: `count` slots of `bytes` each, which are rounded up to whole lines of the cache.
    ///
    /// # Errors
    ///
    /// Above all `ENOMEM`, at the limit on locked memory.
    pub fn region(&self, count: usize, bytes: usize, access: Access) -> Result<Region<P>> {
        let slot = bytes.max(1).next_multiple_of(64);
        let object = format!("{count} slots of {slot} bytes on {}", self.device.name);
        let total = slot
            .checked_mul(count.max(1))
            .and_then(|total| total.checked_next_multiple_of(4096));
        let Some(total) = total else {
            return Err(Error::refused(
                "ibv_reg_mr",
                object,
                "more than there are addresses",
                "ask for fewer",
            ));
        };
        let pages = Pages::new(total)?;
        // SAFETY: the region keeps the pages until the registration has ended, and its slots answer for who touches
        // them.
        let memory = unsafe { P::register(&self.raw, pages.start(), total, access) };
        let memory = memory.map_err(Error::of("ibv_reg_mr", object))?;
        Ok(Region::new(pages, memory, slot))
    }

    /// Registers memory of the program.
    ///
    /// # Errors
    ///
    /// `ENOMEM` at the limit on locked memory, `EFAULT` for memory that is not there.
    ///
    /// # Safety
    ///
    /// Until what is returned is dropped and no operation with it is under way:
    ///
    /// - the memory stays mapped;
    /// - where an own operation or, by `access`, a peer may write, the program relies on none of its bytes;
    /// - where an operation may read, nobody changes them.
    pub unsafe fn register(
        &self,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Arc<Registered<P>>> {
        // SAFETY: as the caller promises.
        let memory = unsafe { P::register(&self.raw, base, length, access) };
        let memory = memory.map_err(Error::of(
            "ibv_reg_mr",
            format!("{length} bytes on {}", self.device.name),
        ))?;
        Ok(Arc::new(Registered::new(memory, base, length)))
    }

    /// A peer's address. May wait a second for a peer that does not answer.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` where nobody answers.
    pub fn address_handle(&self, path: &Path) -> Result<AddressHandle<P>> {
        let raw = P::address_handle(&self.raw, path).map_err(Error::of(
            "ibv_create_ah",
            format!("{} to a peer", self.device.name),
        ))?;
        Ok(AddressHandle(Arc::new(raw)))
    }
}

/// A peer's address, for datagrams.
#[derive(Debug)]
pub struct AddressHandle<P: Provider>(pub(crate) Arc<P::AddressHandle>);

impl<P: Provider> Clone for AddressHandle<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A queue of receives that several pairs share. Receives are posted by [`crate::Queue::receive_shared`].
#[derive(Debug)]
pub struct Receives<P: Provider> {
    pub(crate) raw: Arc<P::Receives>,
    pub(crate) queue: u64,
    pub(crate) account: u64,
    pub(crate) length: u32,
}

impl<P: Provider> Receives<P> {
    /// Has the device report, once, that fewer receives are left.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn report_below(&self, limit: u32) -> Result<()> {
        P::report_below(&self.raw, limit)
            .map_err(Error::of("ibv_modify_srq", format!("limit {limit}")))
    }

    /// The number by which peers name it, of an extended connection.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for another one.
    pub fn number(&self) -> Result<u32> {
        P::number_of_receives(&self.raw).map_err(Error::of("ibv_get_srq_num", "shared receives"))
    }

    /// Receives at most.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }
}
