/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The KNEM interface of /dev/knem, by the name and with the types that programs written for KNEM
 * include. The kernel's own header, kmod/include/uapi/knem.h, has the same layout with the kernel's
 * types, and says what each command answers.
 */
#ifndef KNEM_IO_H
#define KNEM_IO_H 1

#include <stdint.h>
#include <sys/ioctl.h>

#define KNEM_DEVICE_NAME "knem"
#define KNEM_DEVICE_FILENAME ("/dev/" KNEM_DEVICE_NAME)
/* What GET_INFO says must equal it. */
#define KNEM_ABI_VERSION 0x0000000d
#define KNEM_CMD_MAGIC 'K'
#define KNEM_CMD_INDEX(command) _IOC_NR(command)

/*
 * mmap() at this offset makes the status array and starts the worker: one byte for each copy that
 * is under way, at most 64 pages.
 */
#define KNEM_STATUS_ARRAY_FILE_OFFSET 0

struct knem_cmd_info {
	uint32_t abi;
	uint32_t features;
	uint32_t ignored_flags;
	uint32_t forced_flags;
};
#define KNEM_CMD_GET_INFO _IOW(KNEM_CMD_MAGIC, 0x10, struct knem_cmd_info)
/* KNEM_FLAG_DMA may be given. The onecopy module never has it. */
#define KNEM_FEATURE_DMA (1 << 0)

/* Where the worker runs; before the status array is made, EBUSY afterwards. */
struct knem_cmd_bind_offload {
	uint32_t flags;
	uint32_t mask_len; /* bytes */
	uint64_t mask_ptr;
};
#define KNEM_CMD_BIND_OFFLOAD _IOR(KNEM_CMD_MAGIC, 0x11, struct knem_cmd_bind_offload)
#define KNEM_BIND_FLAG_CUSTOM (1 << 0)
#define KNEM_BIND_FLAG_CURRENT (1 << 1)
#define KNEM_BIND_FLAG_CURRENT_REVERSED (1 << 2)
typedef uint32_t knem_bind_flags;

/*
 * Commands look at flags of their own mask only; KNEM_FLAG_DMA without KNEM_FEATURE_DMA is EINVAL.
 */
#define KNEM_FLAG_DMA (1 << 0)
#define KNEM_FLAG_ASYNCDMACOMPLETE (1 << 1)
#define KNEM_FLAG_DMATHREAD (1 << 2)
#define KNEM_FLAG_MEMCPYTHREAD (1 << 3) /* the worker copies, and the call returns at once */
#define KNEM_FLAG_PINLOCAL (1 << 4) /* no effect */
#define KNEM_FLAG_SINGLEUSE (1 << 5) /* the region ends with its first use */
#define KNEM_FLAG_NOTIFY_FD (1 << 6) /* completions are read from the descriptor */
#define KNEM_FLAG_ANY_USER_ACCESS (1 << 7)
#define KNEM_FLAG_ANY_THREAD_MASK (KNEM_FLAG_DMATHREAD | KNEM_FLAG_MEMCPYTHREAD)
#define KNEM_FLAG_ANY_ASYNC_MASK (KNEM_FLAG_ASYNCDMACOMPLETE | KNEM_FLAG_ANY_THREAD_MASK)
#define KNEM_FLAG_ANY_DMA_MASK (KNEM_FLAG_DMA | KNEM_FLAG_ASYNCDMACOMPLETE | KNEM_FLAG_DMATHREAD)
#define KNEM_FLAG_ANY_CREATE_MASK (KNEM_FLAG_SINGLEUSE | KNEM_FLAG_ANY_USER_ACCESS)
#define KNEM_FLAG_ANY_COPY_MASK \
	(KNEM_FLAG_ANY_DMA_MASK | KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_PINLOCAL | KNEM_FLAG_NOTIFY_FD)
typedef uint32_t knem_flags;

typedef uint64_t knem_cookie_t;

struct knem_cmd_param_iovec {
	uint64_t base;
	uint64_t len;
};

/* flags: of KNEM_FLAG_ANY_CREATE_MASK. protection: PROT_READ, PROT_WRITE, what others may do. */
struct knem_cmd_create_region {
	uint64_t iovec_array;
	uint32_t iovec_nr;
	uint32_t flags;
	uint32_t protection;
	uint32_t pad1;
	uint64_t cookie; /* out */
};
#define KNEM_CMD_CREATE_REGION _IOWR(KNEM_CMD_MAGIC, 0x21, struct knem_cmd_create_region)
#define KNEM_CMD_DESTROY_REGION _IOR(KNEM_CMD_MAGIC, 0x22, knem_cookie_t)

/*
 * Copies. With a flag of KNEM_FLAG_ANY_ASYNC_MASK the result is in the status array, and
 * current_status says whether it is there yet; otherwise current_status is the result. What lies
 * beyond the end of a region is not copied, which is no failure.
 */
struct knem_cmd_copy_bounded {
	uint64_t src_cookie;
	uint64_t src_offset;
	uint64_t dst_cookie;
	uint64_t dst_offset;
	uint64_t length;
	uint32_t flags;
	uint32_t current_status; /* out */
	uint32_t async_status_index;
	uint32_t pad;
};
#define KNEM_CMD_COPY_BOUNDED _IOR(KNEM_CMD_MAGIC, 0x34, struct knem_cmd_copy_bounded)

struct knem_cmd_copy {
	uint64_t src_cookie;
	uint64_t src_offset;
	uint64_t dst_cookie;
	uint64_t dst_offset;
	uint32_t flags;
	uint32_t current_status; /* out */
	uint32_t async_status_index;
	uint32_t pad;
};
#define KNEM_CMD_COPY _IOR(KNEM_CMD_MAGIC, 0x32, struct knem_cmd_copy)

/* Between memory of the caller and a region. write: to the region. */
struct knem_cmd_inline_copy_bounded {
	uint64_t local_iovec_array;
	uint32_t local_iovec_nr;
	uint32_t write;
	uint64_t remote_cookie;
	uint64_t remote_offset;
	uint64_t length;
	uint32_t flags;
	uint32_t current_status; /* out */
	uint32_t async_status_index;
	uint32_t pad;
};
#define KNEM_CMD_INLINE_COPY_BOUNDED _IOR(KNEM_CMD_MAGIC, 0x35, struct knem_cmd_inline_copy_bounded)

struct knem_cmd_inline_copy {
	uint64_t local_iovec_array;
	uint32_t local_iovec_nr;
	uint32_t write;
	uint64_t remote_cookie;
	uint64_t remote_offset;
	uint32_t flags;
	uint32_t current_status; /* out */
	uint32_t async_status_index;
	uint32_t pad;
};
#define KNEM_CMD_INLINE_COPY _IOR(KNEM_CMD_MAGIC, 0x33, struct knem_cmd_inline_copy)

enum knem_status_e {
	KNEM_STATUS_PENDING,
	KNEM_STATUS_SUCCESS,
	KNEM_STATUS_FAILED
};
typedef uint8_t knem_status_t;

/* Before there were regions: what was sent is received once. */
struct knem_cmd_init_send_param {
	uint64_t send_iovec_array;
	uint32_t send_iovec_nr;
	uint32_t flags;
	uint64_t send_cookie; /* out */
};
#define KNEM_CMD_INIT_SEND _IOWR(KNEM_CMD_MAGIC, 0x20, struct knem_cmd_init_send_param)

struct knem_cmd_init_async_recv_param {
	uint64_t recv_iovec_array;
	uint32_t recv_iovec_nr;
	uint32_t status_index;
	uint64_t send_cookie;
	uint32_t flags;
	uint32_t pad;
};
#define KNEM_CMD_INIT_ASYNC_RECV _IOR(KNEM_CMD_MAGIC, 0x30, struct knem_cmd_init_async_recv_param)

struct knem_cmd_sync_recv_param {
	uint64_t recv_iovec_array;
	uint32_t recv_iovec_nr;
	uint32_t status; /* out */
	uint64_t send_cookie;
	uint32_t flags;
	uint32_t pad;
};
#define KNEM_CMD_SYNC_RECV _IOR(KNEM_CMD_MAGIC, 0x31, struct knem_cmd_sync_recv_param)

#endif
