/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * /dev/onecopy: memory of one process, granted to others as a file descriptor.
 *
 * Whoever holds the descriptor of a segment may map it or copy to and from it, in the direction that it was granted for, whatever
 * its user, pid or user namespace; nobody else can. Every command takes a struct whose first member is its size, as the caller knows
 * it: members that a caller does not know read as zero; members that the module does not know must be zero (E2BIG).
 * Reserved members and unknown flags are refused (EINVAL).
 */
#ifndef ONECOPY_UAPI_ONECOPY_H
#define ONECOPY_UAPI_ONECOPY_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ONECOPY_ABI_VERSION 1
#define ONECOPY_DEVICE_FILENAME "/dev/onecopy"
#define ONECOPY_IOC_MAGIC 0xC1

/* ---- on /dev/onecopy ---- */

/* What the module offers. */
struct onecopy_info {
	__u32 size;
	__u32 abi; /* out: ONECOPY_ABI_VERSION */
	__u64 features; /* out: ONECOPY_FEATURE_* */
	__u64 window; /* out: bytes that one fault may map */
	__u8 release[32]; /* out: the module's version, ends with a zero byte */
};
#define ONECOPY_IOC_INFO _IO(ONECOPY_IOC_MAGIC, 0x00)
#define ONECOPY_FEATURE_HUGE 0x1 /* 2 MiB mappings where the source is huge */
#define ONECOPY_FEATURE_SNAPSHOT 0x2 /* no page is pinned by an attachment (false: pages are found one by one) */
#define ONECOPY_FEATURE_GENERATION 0x4
#define ONECOPY_FEATURE_COPY 0x8
#define ONECOPY_FEATURE_PREFAULT 0x10

/* Grant [address, address + length) of the caller, multiples of the page size. length ONECOPY_WHOLE with address 0: all of it. */
struct onecopy_export {
	__u32 size;
	__u32 flags; /* ONECOPY_EXPORT_* */
	__u64 address;
	__u64 length;
	__s32 fd; /* out: the segment, close-on-exec */
	__u32 reserved;
};
#define ONECOPY_IOC_EXPORT _IO(ONECOPY_IOC_MAGIC, 0x01)
#define ONECOPY_EXPORT_WRITE 0x1 /* holders may write; where the owner itself may not write, nobody may */
#define ONECOPY_WHOLE ((__u64)-1)

/*
 * Map [address, address + length) of the caller's attachments now. An error is that of the first page that could not be mapped, at
 * address + done; what lies before it is mapped.
 */
struct onecopy_prefault {
	__u32 size;
	__u32 flags; /* ONECOPY_PREFAULT_WRITE: for writing */
	__u64 address;
	__u64 length;
	__u64 done; /* out, also on error */
};
#define ONECOPY_IOC_PREFAULT _IO(ONECOPY_IOC_MAGIC, 0x02)
#define ONECOPY_PREFAULT_WRITE 0x1

/*
 * Copy length bytes from src to dst. src, dst: offsets in the segments src_fd, dst_fd, or addresses of the caller where the descriptor
 * is -1. Fails with the error of the first byte that could not be copied; done bytes before it were.
 */
struct onecopy_copy {
	__u32 size;
	__u32 flags; /* none yet */
	__s32 src_fd;
	__s32 dst_fd;
	__u64 src;
	__u64 dst;
	__u64 length;
	__u64 done; /* out, also on error */
};
#define ONECOPY_IOC_COPY _IO(ONECOPY_IOC_MAGIC, 0x03)

/* Sums since the module was loaded, of all devices and users; gauges are of now. */
struct onecopy_stats {
	__u32 size;
	__u32 reserved;
	__u64 segments; /* gauge */
	__u64 permits; /* gauge: xpmem access permits */
	__u64 regions; /* gauge: knem regions */
	__u64 pinned_pages; /* gauge: by knem regions */
	__u64 attaches;
	__u64 faults;
	__u64 retries; /* faults that waited for the owner's map lock and began anew */
	__u64 mapped_small; /* pages mapped one by one */
	__u64 mapped_huge; /* 2 MiB mappings */
	__u64 invalidations;
	__u64 holes; /* accesses that found no memory of the owner */
	__u64 copies;
	__u64 copied_bytes;
};
#define ONECOPY_IOC_STATS _IO(ONECOPY_IOC_MAGIC, 0x04)

/* ---- on a segment ---- */

struct onecopy_segment_info {
	__u32 size;
	__u32 flags; /* out: ONECOPY_SEGMENT_* */
	__u64 address; /* out: the owner's address of offset 0 */
	__u64 length; /* out */
};
#define ONECOPY_IOC_SEGMENT_INFO _IO(ONECOPY_IOC_MAGIC, 0x10)
#define ONECOPY_SEGMENT_WRITE 0x1 /* this descriptor may be mapped for writing */
#define ONECOPY_SEGMENT_DEAD 0x2 /* the owner's memory is gone, or the grant was revoked */
#define ONECOPY_SEGMENT_MINE 0x4 /* it is the caller's own memory */

/* A second descriptor of the same segment, with the same or fewer rights. */
struct onecopy_restrict {
	__u32 size;
	__u32 flags; /* ONECOPY_EXPORT_WRITE: keep the right to write */
	__s32 fd; /* out, close-on-exec */
	__u32 reserved;
};
#define ONECOPY_IOC_RESTRICT _IO(ONECOPY_IOC_MAGIC, 0x11)

/* Take all attachments back, for good. By the owner's process only (EPERM). No argument. */
#define ONECOPY_IOC_REVOKE _IO(ONECOPY_IOC_MAGIC, 0x12)

/*
 * mmap(MAP_SHARED) of a segment: offset 0 is its first byte. A hole reads as zeroes, takes writes to nowhere, and counts in holes.
 * mmap(MAP_SHARED, PROT_READ) of one page at this offset: struct onecopy_generation.
 */
#define ONECOPY_MMAP_GENERATION (1ULL << 62)

/*
 * A user who reads through an attachment compares holes and state with what they were when it was mapped: unchanged means that every byte was the
 * owner's. Once they differ, map it anew: zeroes that stood for a hole may stay where they are for as long as the mapping does.
 */
struct onecopy_generation {
	__u64 holes; /* accesses, by any holder, that found no memory of the owner */
	__u64 invalidations; /* how often the owner's mappings within the segment changed */
	__u32 state; /* ONECOPY_STATE_* */
	__u32 reserved;
};
#define ONECOPY_STATE_ALIVE 0
#define ONECOPY_STATE_OWNER_GONE 1
#define ONECOPY_STATE_REVOKED 2

#endif
