// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate declares what the C header declares, all of it, at the same places and with the same values.

#[path = "../../layout.rs"]
mod layout;

use knem_sys::*;

#[test]
fn the_crate_is_the_header() {
    let mut rust = layout::Abi::default();
    layout::constants! { rust:
        KNEM_ABI_VERSION,
        KNEM_DEVICE_FILENAME,
        KNEM_IOC_MAGIC,
        KNEM_STATUS_PENDING,
        KNEM_STATUS_SUCCESS,
        KNEM_STATUS_FAILED,
        KNEM_FEATURE_DMA,
        KNEM_FLAG_DMA,
        KNEM_FLAG_ASYNCDMACOMPLETE,
        KNEM_FLAG_DMATHREAD,
        KNEM_FLAG_MEMCPYTHREAD,
        KNEM_FLAG_PINLOCAL,
        KNEM_FLAG_SINGLEUSE,
        KNEM_FLAG_NOTIFY_FD,
        KNEM_FLAG_ANY_USER_ACCESS,
        KNEM_FLAG_ANY_THREAD_MASK,
        KNEM_FLAG_ANY_ASYNC_MASK,
        KNEM_FLAG_ANY_DMA_MASK,
        KNEM_FLAG_ANY_CREATE_MASK,
        KNEM_FLAG_ANY_COPY_MASK,
        KNEM_CMD_GET_INFO,
        KNEM_BIND_FLAG_CUSTOM,
        KNEM_BIND_FLAG_CURRENT,
        KNEM_BIND_FLAG_CURRENT_REVERSED,
        KNEM_CMD_BIND_OFFLOAD,
        KNEM_CMD_CREATE_REGION,
        KNEM_CMD_DESTROY_REGION,
        KNEM_CMD_COPY,
        KNEM_CMD_COPY_BOUNDED,
        KNEM_CMD_INLINE_COPY,
        KNEM_CMD_INLINE_COPY_BOUNDED,
        KNEM_CMD_INIT_SEND,
        KNEM_CMD_INIT_ASYNC_RECV,
        KNEM_CMD_SYNC_RECV,
    }
    layout::aliases! { rust: knem_cookie_t, knem_status_t }
    layout::structs! { rust:
        knem_cmd_param_iovec { base, len }
        knem_cmd_info { abi, features, ignored_flags, forced_flags }
        knem_cmd_bind_offload { flags, mask_len, mask_ptr }
        knem_cmd_create_region { iovec_array, iovec_nr, flags, protection, pad1, cookie }
        knem_cmd_copy { src_cookie, src_offset, dst_cookie, dst_offset, flags, current_status, async_status_index, pad }
        knem_cmd_copy_bounded { src_cookie, src_offset, dst_cookie, dst_offset, length, flags, current_status, async_status_index, pad }
        knem_cmd_inline_copy { local_iovec_array, local_iovec_nr, write, remote_cookie, remote_offset, flags, current_status, async_status_index, pad }
        knem_cmd_inline_copy_bounded { local_iovec_array, local_iovec_nr, write, remote_cookie, remote_offset, length, flags, current_status, async_status_index, pad }
        knem_cmd_init_send_param { send_iovec_array, send_iovec_nr, flags, send_cookie }
        knem_cmd_init_async_recv_param { recv_iovec_array, recv_iovec_nr, status_index, send_cookie, flags, pad }
        knem_cmd_sync_recv_param { recv_iovec_array, recv_iovec_nr, status, send_cookie, flags, pad }
    }
    layout::compare("knem.h", &rust);
}
