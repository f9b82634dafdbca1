// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate declares what the C header declares, all of it, at the same places and with the same values.

#[path = "../../layout.rs"]
mod layout;

use onecopy_sys::*;

#[test]
fn the_crate_is_the_header() {
    let mut rust = layout::Abi::default();
    layout::constants! { rust:
        ONECOPY_ABI_VERSION,
        ONECOPY_DEVICE_FILENAME,
        ONECOPY_IOC_MAGIC,
        ONECOPY_IOC_INFO,
        ONECOPY_FEATURE_HUGE,
        ONECOPY_FEATURE_SNAPSHOT,
        ONECOPY_FEATURE_GENERATION,
        ONECOPY_FEATURE_COPY,
        ONECOPY_FEATURE_PREFAULT,
        ONECOPY_IOC_EXPORT,
        ONECOPY_EXPORT_WRITE,
        ONECOPY_WHOLE,
        ONECOPY_IOC_PREFAULT,
        ONECOPY_PREFAULT_WRITE,
        ONECOPY_IOC_COPY,
        ONECOPY_IOC_STATS,
        ONECOPY_IOC_SEGMENT_INFO,
        ONECOPY_SEGMENT_WRITE,
        ONECOPY_SEGMENT_DEAD,
        ONECOPY_SEGMENT_MINE,
        ONECOPY_IOC_RESTRICT,
        ONECOPY_IOC_REVOKE,
        ONECOPY_MMAP_GENERATION,
        ONECOPY_STATE_ALIVE,
        ONECOPY_STATE_OWNER_GONE,
        ONECOPY_STATE_REVOKED,
    }
    layout::structs! { rust:
        onecopy_info { size, abi, features, window, release }
        onecopy_export { size, flags, address, length, fd, reserved }
        onecopy_prefault { size, flags, address, length, done }
        onecopy_copy { size, flags, src_fd, dst_fd, src, dst, length, done }
        onecopy_stats { size, reserved, segments, permits, regions, pinned_pages, attaches, faults, retries, mapped_small, mapped_huge, invalidations, holes, copies, copied_bytes, attachments, spaces, workers }
        onecopy_segment_info { size, flags, address, length }
        onecopy_restrict { size, flags, fd, reserved }
        onecopy_generation { holes, invalidations, state, reserved }
    }
    layout::compare("onecopy.h", &rust);
}
