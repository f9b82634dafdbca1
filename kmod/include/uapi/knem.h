/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The KNEM ioctl ABI, as /dev/knem speaks it. The directions in the numbers are part of the ABI,
 * although some say the opposite of what is copied. A number is compared as a whole. Programs of 32
 * bits have the same structs.
 *
 * Errors of all: EFAULT: the struct is not readable and writable. ENOTTY: no such command. "Errors"
 * below are those beside these.
 */
#ifndef ONECOPY_UAPI_KNEM_H
#define ONECOPY_UAPI_KNEM_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define KNEM_ABI_VERSION 0x0000000d
#define KNEM_DEVICE_FILENAME "/dev/knem"
#define KNEM_IOC_MAGIC 'K'

typedef __u64 knem_cookie_t;

/*
 * One byte per asynchronous operation, in the array that is mapped from offset 0 of the device:
 * once per file, MAP_SHARED, at most 64 pages.
 *
 * Errors: EINVAL: another mapping. EBUSY: there is one. EDQUOT: the user has as many as it may.
 * ENOMEM. EINTR: killed.
 */
typedef __u8 knem_status_t;
#define KNEM_STATUS_PENDING 0
#define KNEM_STATUS_SUCCESS 1
#define KNEM_STATUS_FAILED 2

#define KNEM_FEATURE_DMA 0x1

#define KNEM_FLAG_DMA 0x1
#define KNEM_FLAG_ASYNCDMACOMPLETE 0x2
#define KNEM_FLAG_DMATHREAD 0x4
#define KNEM_FLAG_MEMCPYTHREAD 0x8
#define KNEM_FLAG_PINLOCAL 0x10 /* no effect */
#define KNEM_FLAG_SINGLEUSE 0x20
/*
 * Each completion can be read from the file: a __u32 in native byte order, the index of the status.
 * poll() reports POLLIN while there are any. read() waits until as many are there as fit, or until
 * there is one and no copy is outstanding. Before there is a status array, read() gives counters as
 * text, and poll() always reports POLLIN.
 *
 * Errors of read(): EINVAL: fewer than 4 bytes are asked for. EFAULT: the buffer is not writable.
 * EAGAIN: O_NONBLOCK, and there is none or another read is under way. EINTR: a signal came.
 */
#define KNEM_FLAG_NOTIFY_FD 0x40
#define KNEM_FLAG_ANY_USER_ACCESS 0x80

/*
 * Which flags count for what. A command does not look at those of others, nor at unknown ones,
 * except KNEM_FLAG_DMA: without KNEM_FEATURE_DMA it is EINVAL.
 */
#define KNEM_FLAG_ANY_THREAD_MASK (KNEM_FLAG_DMATHREAD | KNEM_FLAG_MEMCPYTHREAD)
/* With one of these, or KNEM_FLAG_NOTIFY_FD, there must be a status array: the result is in it. */
#define KNEM_FLAG_ANY_ASYNC_MASK (KNEM_FLAG_ASYNCDMACOMPLETE | KNEM_FLAG_ANY_THREAD_MASK)
#define KNEM_FLAG_ANY_DMA_MASK (KNEM_FLAG_DMA | KNEM_FLAG_ASYNCDMACOMPLETE | KNEM_FLAG_DMATHREAD)
#define KNEM_FLAG_ANY_CREATE_MASK (KNEM_FLAG_SINGLEUSE | KNEM_FLAG_ANY_USER_ACCESS)
#define KNEM_FLAG_ANY_COPY_MASK \
	(KNEM_FLAG_ANY_DMA_MASK | KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_PINLOCAL | KNEM_FLAG_NOTIFY_FD)

/**
 * struct knem_cmd_param_iovec - bytes of one process: fixed width, unlike struct iovec
 * @base: where they begin
 * @len: how many
 */
struct knem_cmd_param_iovec {
	__u64 base;
	__u64 len;
};

/**
 * struct knem_cmd_info - what the device offers
 * @abi: out: KNEM_ABI_VERSION
 * @features: out: KNEM_FEATURE_*: none
 * @ignored_flags: out: flags that have no effect; zero, and KNEM_FLAG_PINLOCAL has none
 * @forced_flags: out: flags that are always set; zero
 */
struct knem_cmd_info {
	__u32 abi;
	__u32 features;
	__u32 ignored_flags;
	__u32 forced_flags;
};

#define KNEM_CMD_GET_INFO _IOW(KNEM_IOC_MAGIC, 0x10, struct knem_cmd_info)

#define KNEM_BIND_FLAG_CUSTOM 0x1
#define KNEM_BIND_FLAG_CURRENT 0x2
#define KNEM_BIND_FLAG_CURRENT_REVERSED 0x4

/**
 * struct knem_cmd_bind_offload - where the worker runs
 * @flags: one of KNEM_BIND_FLAG_*
 * @mask_len: bytes of the mask
 * @mask_ptr: a mask of CPUs, for KNEM_BIND_FLAG_CUSTOM
 *
 * Errors: EBUSY: the status array is mapped already. EINVAL: not one flag, or no CPU of the
 * mask is online. EFAULT: the mask cannot be read. ENOMEM.
 */
struct knem_cmd_bind_offload {
	__u32 flags;
	__u32 mask_len;
	__u64 mask_ptr;
};

#define KNEM_CMD_BIND_OFFLOAD _IOR(KNEM_IOC_MAGIC, 0x11, struct knem_cmd_bind_offload)

/**
 * struct knem_cmd_create_region - make a region of the caller's memory
 * @iovec_array: its pieces: struct knem_cmd_param_iovec
 * @iovec_nr: how many, at most 65536
 * @flags: KNEM_FLAG_SINGLEUSE, KNEM_FLAG_ANY_USER_ACCESS
 * @protection: PROT_READ, PROT_WRITE of sys/mman.h: what others may do with it
 * @pad1: unused
 * @cookie: out: its name
 *
 * Errors: EINVAL: no piece or too many, beyond the address space, or neither PROT_READ nor
 * PROT_WRITE. EFAULT: pieces that cannot be read, or memory that is not there, may not be used so
 * or may not be pinned. ENOMEM: also beyond RLIMIT_MEMLOCK. EDQUOT: the user has as many regions as
 * it may. EOPNOTSUPP: a file on DAX. EINTR: killed.
 *
 * KNEM_CMD_DESTROY_REGION takes a cookie. Errors: EINVAL: no region that was made by this file.
 */
struct knem_cmd_create_region {
	__u64 iovec_array;
	__u32 iovec_nr;
	__u32 flags;
	__u32 protection;
	__u32 pad1;
	knem_cookie_t cookie;
};

#define KNEM_CMD_CREATE_REGION _IOWR(KNEM_IOC_MAGIC, 0x21, struct knem_cmd_create_region)
#define KNEM_CMD_DESTROY_REGION _IOR(KNEM_IOC_MAGIC, 0x22, knem_cookie_t)

/*
 * Errors of all copies, before a byte moves; the status reports later ones. EINVAL: no such
 * region, KNEM_FLAG_DMA, or a status is asked for that has no place in a mapped array. EPERM:
 * another user's region. EACCES: the region is not for that direction. EBUSY: the array is full.
 * ENOMEM. Of copies with local pieces also those of CREATE_REGION.
 */

/**
 * struct knem_cmd_copy - copy from one region to another, as far as both go
 * @src_cookie: the region to copy from
 * @src_offset: of the first byte there
 * @dst_cookie: the region to copy to
 * @dst_offset: of the first byte there
 * @flags: KNEM_FLAG_*
 * @current_status: out: KNEM_STATUS_*
 * @async_status_index: the byte of the status array, for a caller that does not wait
 * @pad: unused
 */
struct knem_cmd_copy {
	knem_cookie_t src_cookie;
	__u64 src_offset;
	knem_cookie_t dst_cookie;
	__u64 dst_offset;
	__u32 flags;
	__u32 current_status;
	__u32 async_status_index;
	__u32 pad;
};

#define KNEM_CMD_COPY _IOR(KNEM_IOC_MAGIC, 0x32, struct knem_cmd_copy)

/**
 * struct knem_cmd_copy_bounded - copy from one region to another
 * @src_cookie: the region to copy from
 * @src_offset: of the first byte there
 * @dst_cookie: the region to copy to
 * @dst_offset: of the first byte there
 * @length: bytes, at most
 * @flags: KNEM_FLAG_*
 * @current_status: out: KNEM_STATUS_*
 * @async_status_index: the byte of the status array, for a caller that does not wait
 * @pad: unused
 */
struct knem_cmd_copy_bounded {
	knem_cookie_t src_cookie;
	__u64 src_offset;
	knem_cookie_t dst_cookie;
	__u64 dst_offset;
	__u64 length;
	__u32 flags;
	__u32 current_status;
	__u32 async_status_index;
	__u32 pad;
};

#define KNEM_CMD_COPY_BOUNDED _IOR(KNEM_IOC_MAGIC, 0x34, struct knem_cmd_copy_bounded)

/**
 * struct knem_cmd_inline_copy - copy between the caller's memory and a region, as far as both go
 * @local_iovec_array: the caller's pieces: struct knem_cmd_param_iovec
 * @local_iovec_nr: how many
 * @write: non-zero: from local to remote
 * @remote_cookie: the region
 * @remote_offset: of the first byte there
 * @flags: KNEM_FLAG_*
 * @current_status: out: KNEM_STATUS_*
 * @async_status_index: the byte of the status array, for a caller that does not wait
 * @pad: unused
 */
struct knem_cmd_inline_copy {
	__u64 local_iovec_array;
	__u32 local_iovec_nr;
	__u32 write;
	knem_cookie_t remote_cookie;
	__u64 remote_offset;
	__u32 flags;
	__u32 current_status;
	__u32 async_status_index;
	__u32 pad;
};

#define KNEM_CMD_INLINE_COPY _IOR(KNEM_IOC_MAGIC, 0x33, struct knem_cmd_inline_copy)

/**
 * struct knem_cmd_inline_copy_bounded - copy between the caller's memory and a region
 * @local_iovec_array: the caller's pieces: struct knem_cmd_param_iovec
 * @local_iovec_nr: how many
 * @write: non-zero: from local to remote
 * @remote_cookie: the region
 * @remote_offset: of the first byte there
 * @length: bytes, at most
 * @flags: KNEM_FLAG_*
 * @current_status: out: KNEM_STATUS_*
 * @async_status_index: the byte of the status array, for a caller that does not wait
 * @pad: unused
 */
struct knem_cmd_inline_copy_bounded {
	__u64 local_iovec_array;
	__u32 local_iovec_nr;
	__u32 write;
	knem_cookie_t remote_cookie;
	__u64 remote_offset;
	__u64 length;
	__u32 flags;
	__u32 current_status;
	__u32 async_status_index;
	__u32 pad;
};

#define KNEM_CMD_INLINE_COPY_BOUNDED _IOR(KNEM_IOC_MAGIC, 0x35, struct knem_cmd_inline_copy_bounded)

/**
 * struct knem_cmd_init_send_param - expose memory once, in the interface before regions
 * @send_iovec_array: the pieces: struct knem_cmd_param_iovec
 * @send_iovec_nr: how many
 * @flags: ignored
 * @send_cookie: out: its name
 *
 * Errors: those of CREATE_REGION.
 */
struct knem_cmd_init_send_param {
	__u64 send_iovec_array;
	__u32 send_iovec_nr;
	__u32 flags;
	knem_cookie_t send_cookie;
};

#define KNEM_CMD_INIT_SEND _IOWR(KNEM_IOC_MAGIC, 0x20, struct knem_cmd_init_send_param)

/**
 * struct knem_cmd_init_async_recv_param - take what a sender exposed, without waiting
 * @recv_iovec_array: where to: struct knem_cmd_param_iovec
 * @recv_iovec_nr: how many
 * @status_index: the byte of the status array
 * @send_cookie: what the sender exposed
 * @flags: KNEM_FLAG_*
 * @pad: unused
 *
 * Whatever the flags say, the status array has to be mapped (EINVAL).
 *
 * Errors: those of copies.
 */
struct knem_cmd_init_async_recv_param {
	__u64 recv_iovec_array;
	__u32 recv_iovec_nr;
	__u32 status_index;
	knem_cookie_t send_cookie;
	__u32 flags;
	__u32 pad;
};

#define KNEM_CMD_INIT_ASYNC_RECV _IOR(KNEM_IOC_MAGIC, 0x30, struct knem_cmd_init_async_recv_param)

/**
 * struct knem_cmd_sync_recv_param - take what a sender exposed
 * @recv_iovec_array: where to: struct knem_cmd_param_iovec
 * @recv_iovec_nr: how many
 * @status: out: KNEM_STATUS_*
 * @send_cookie: what the sender exposed
 * @flags: KNEM_FLAG_*; those of KNEM_FLAG_ANY_ASYNC_MASK are ignored
 * @pad: unused
 *
 * Errors: those of copies. EINVAL: also KNEM_FLAG_NOTIFY_FD.
 */
struct knem_cmd_sync_recv_param {
	__u64 recv_iovec_array;
	__u32 recv_iovec_nr;
	__u32 status;
	knem_cookie_t send_cookie;
	__u32 flags;
	__u32 pad;
};

#define KNEM_CMD_SYNC_RECV _IOR(KNEM_IOC_MAGIC, 0x31, struct knem_cmd_sync_recv_param)

#endif
