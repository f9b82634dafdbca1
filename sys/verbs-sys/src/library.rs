// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library, opened when it is first used.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::loader::Handle;
use crate::*;

/// What is opened. The number is that of the interface, the same since 2004.
const NAME: &CStr = c"libibverbs.so.1";

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The loader's or our word for it.
    reason: String,
}

impl Missing {
    /// What would help.
    pub const REMEDY: &str = "install rdma-core (Debian: libibverbs1 and ibverbs-providers)";

    /// What was seen.
    #[must_use]
    pub fn seen(&self) -> String {
        format!("dlopen of {}: {}", NAME.to_string_lossy(), self.reason)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.seen(), Self::REMEDY)
    }
}

impl std::error::Error for Missing {}

macro_rules! functions {
    ($($(#[$about:meta])* $name:ident: fn($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions that the library exports, by their names in C.
        #[derive(Clone, Copy)]
        #[allow(missing_debug_implementations, reason = "addresses say nothing")]
        pub struct Library {
            $($(#[$about])* pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(handle: Handle) -> Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        let found = handle.symbol(concat!(stringify!($name), "\0"));
                        let found = found.map_err(|reason| Missing { reason })?;
                        // SAFETY: the symbol is the function that the C header declares so.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument: $type),*) $(-> $result)?>(found)
                        }
                    },)*
                })
            }

            /// The names of all functions.
            #[doc(hidden)]
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];
        }
    };
}

functions! {
    /// All devices, ended by null.
    ibv_get_device_list: fn(count: *mut c_int) -> *mut *mut ibv_device;
    /// Gives the list back. Open what is wanted first.
    ibv_free_device_list: fn(list: *mut *mut ibv_device);
    /// A device's name.
    ibv_get_device_name: fn(device: *mut ibv_device) -> *const c_char;
    /// Its number in the world, big endian.
    ibv_get_device_guid: fn(device: *mut ibv_device) -> u64;
    /// Opens a device.
    ibv_open_device: fn(device: *mut ibv_device) -> *mut ibv_context;
    /// Closes it.
    ibv_close_device: fn(context: *mut ibv_context) -> c_int;
    /// Waits for an event, unless the descriptor says otherwise.
    ibv_get_async_event: fn(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    /// Ends it: what it is about can be destroyed now.
    ibv_ack_async_event: fn(event: *mut ibv_async_event);
    /// What a device can do.
    ibv_query_device: fn(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    /// A port, without what came later: see [`crate::ibv_query_port`].
    ibv_query_port: fn(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    /// A row of a port's addresses.
    ibv_query_gid: fn(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    /// The same with its kind; `size` is that of the entry.
    _ibv_query_gid_ex: fn(context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32, size: usize) -> c_int;
    /// All rows of all ports; how many there are.
    _ibv_query_gid_table: fn(context: *mut ibv_context, entries: *mut ibv_gid_entry, count: usize, flags: u32, size: usize) -> isize;
    /// A row of a port's partitions.
    ibv_query_pkey: fn(context: *mut ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int;
    /// A protection domain.
    ibv_alloc_pd: fn(context: *mut ibv_context) -> *mut ibv_pd;
    /// Ends it.
    ibv_dealloc_pd: fn(pd: *mut ibv_pd) -> c_int;
    /// Registers memory.
    ibv_reg_mr: fn(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    /// The same, under other addresses.
    ibv_reg_mr_iova: fn(pd: *mut ibv_pd, address: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr;
    /// The same, with optional kinds of access.
    ibv_reg_mr_iova2: fn(pd: *mut ibv_pd, address: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
    /// Registers memory of another device.
    ibv_reg_dmabuf_mr: fn(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr;
    /// Ends a registration.
    ibv_dereg_mr: fn(mr: *mut ibv_mr) -> c_int;
    /// A channel for completion events.
    ibv_create_comp_channel: fn(context: *mut ibv_context) -> *mut ibv_comp_channel;
    /// Ends it.
    ibv_destroy_comp_channel: fn(channel: *mut ibv_comp_channel) -> c_int;
    /// A queue of completions.
    ibv_create_cq: fn(context: *mut ibv_context, length: c_int, word: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    /// Makes it longer or shorter.
    ibv_resize_cq: fn(cq: *mut ibv_cq, length: c_int) -> c_int;
    /// Ends it, once all its events are acknowledged.
    ibv_destroy_cq: fn(cq: *mut ibv_cq) -> c_int;
    /// Waits for an event, unless the descriptor says otherwise.
    ibv_get_cq_event: fn(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, word: *mut *mut c_void) -> c_int;
    /// Acknowledges events.
    ibv_ack_cq_events: fn(cq: *mut ibv_cq, count: c_uint);
    /// A queue of receives.
    ibv_create_srq: fn(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    /// Changes its length or limit.
    ibv_modify_srq: fn(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    /// Its lengths.
    ibv_query_srq: fn(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    /// Ends it.
    ibv_destroy_srq: fn(srq: *mut ibv_srq) -> c_int;
    /// A queue pair.
    ibv_create_qp: fn(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Changes its state.
    ibv_modify_qp: fn(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    /// Its state.
    ibv_query_qp: fn(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    /// Ends it.
    ibv_destroy_qp: fn(qp: *mut ibv_qp) -> c_int;
    /// The pair as an extended one.
    ibv_qp_to_qp_ex: fn(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    /// A peer's address.
    ibv_create_ah: fn(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    /// That of a datagram's sender.
    ibv_create_ah_from_wc: fn(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port: u8) -> *mut ibv_ah;
    /// Ends it.
    ibv_destroy_ah: fn(ah: *mut ibv_ah) -> c_int;
    /// Joins a group.
    ibv_attach_mcast: fn(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// Leaves it.
    ibv_detach_mcast: fn(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// Makes registered memory survive a fork.
    ibv_fork_init: fn() -> c_int;
    /// The name of a status.
    ibv_wc_status_str: fn(status: c_uint) -> *const c_char;
    /// The name of an event.
    ibv_event_type_str: fn(event: c_uint) -> *const c_char;
    /// The name of a port's state.
    ibv_port_state_str: fn(state: c_uint) -> *const c_char;
}

impl Library {
    /// The library. It is opened by the first call, and stays.
    ///
    /// # Errors
    ///
    /// What is missing, and what would help. The answer stays the same for the life of the process.
    pub fn load() -> Result<&'static Self, &'static Missing> {
        static LOADED: OnceLock<Result<Library, Missing>> = OnceLock::new();
        LOADED.get_or_init(|| open(NAME)).as_ref()
    }
}

fn open(name: &CStr) -> Result<Library, Missing> {
    let handle = Handle::open(name, libc::RTLD_LOCAL).map_err(|reason| Missing { reason })?;
    Library::find(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_remedy() {
        let missing = open(c"libibverbs-is-not-here.so.1")
            .err()
            .expect("it is not there");
        let text = missing.to_string();
        assert!(text.contains("libibverbs-is-not-here.so.1"), "{text}");
        assert!(text.contains("libibverbs1"), "{text}");
    }

    #[test]
    fn a_library_without_a_function_is_too_old() {
        // The C library has none of them.
        let missing = open(c"libc.so.6").err().expect("another library");
        assert!(
            missing.to_string().contains("ibv_get_device_list"),
            "{missing}"
        );
    }
}
