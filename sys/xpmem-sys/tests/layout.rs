// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate declares what the C header declares, all of it, at the same places and with the same values.

#[path = "../../layout.rs"]
mod layout;

use xpmem_sys::*;

#[test]
fn the_crate_is_the_header() {
    let mut rust = layout::Abi::default();
    layout::constants! { rust:
        XPMEM_CURRENT_VERSION,
        XPMEM_IOC_MAGIC,
        XPMEM_CMD_VERSION,
        XPMEM_CMD_MAKE,
        XPMEM_CMD_REMOVE,
        XPMEM_CMD_GET,
        XPMEM_CMD_RELEASE,
        XPMEM_CMD_ATTACH,
        XPMEM_CMD_DETACH,
        XPMEM_CMD_FORK_BEGIN,
        XPMEM_CMD_FORK_END,
        XPMEM_RDONLY,
        XPMEM_RDWR,
        XPMEM_PERMIT_MODE,
        XPMEM_MAXADDR_SIZE,
        XPMEM_ERRNO_NOPROC,
    }
    layout::aliases! { rust: xpmem_segid_t, xpmem_apid_t }
    layout::structs! { rust:
        xpmem_cmd_make { vaddr, size, permit_type, pad, permit_value, segid }
        xpmem_cmd_remove { segid }
        xpmem_cmd_get { segid, flags, permit_type, permit_value, apid }
        xpmem_cmd_release { apid }
        xpmem_cmd_attach { apid, offset, size, vaddr, fd, flags }
        xpmem_cmd_detach { vaddr }
    }
    layout::compare("xpmem.h", &rust);
}
