/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * /dev/onecopy: memory of one process, granted to others as a file descriptor.
 *
 * A process that holds the descriptor of a segment may map it or copy to and from it, in the
 * direction that was granted. Its user, pid or user namespace does not matter. No other process
 * can.
 *
 * Every command but REVOKE takes a struct whose first member is its size, as the caller knows it.
 * That is at least 8 bytes (EINVAL), at most a page (E2BIG). Members that a caller does not know
 * read as zero. Members that the module does not know must be zero (E2BIG). EINVAL: a reserved
 * member is not zero, a flag is unknown, or the struct lacks a member that the command needs.
 * EFAULT: the struct is not readable and writable. ENOTTY: no such command. "Errors" below are
 * those beside these. Programs of 32 bits have the same structs.
 */
#ifndef ONECOPY_UAPI_ONECOPY_H
#define ONECOPY_UAPI_ONECOPY_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ONECOPY_ABI_VERSION 1
#define ONECOPY_DEVICE_FILENAME "/dev/onecopy"
#define ONECOPY_IOC_MAGIC 0xC1

/* ---- on /dev/onecopy ---- */

/**
 * struct onecopy_info - what the module offers
 * @size: of this struct, as the caller knows it
 * @abi: out: ONECOPY_ABI_VERSION
 * @features: out: ONECOPY_FEATURE_*
 * @window: out: bytes that one fault may map
 * @release: out: the module's version, ends with a zero byte
 */
struct onecopy_info {
	__u32 size;
	__u32 abi;
	__u64 features;
	__u64 window;
	__u8 release[32];
};

#define ONECOPY_IOC_INFO _IO(ONECOPY_IOC_MAGIC, 0x00)
#define ONECOPY_FEATURE_HUGE 0x1 /* 2 MiB mappings where the source is huge */
/*
 * The owner's page tables are read without taking a page. Without it up to 16 pages are looked up
 * at a time, and held for that moment.
 */
#define ONECOPY_FEATURE_SNAPSHOT 0x2
#define ONECOPY_FEATURE_GENERATION 0x4
#define ONECOPY_FEATURE_COPY 0x8
#define ONECOPY_FEATURE_PREFAULT 0x10

/**
 * struct onecopy_export - grant [address, address + length) of the caller
 * @size: of this struct, as the caller knows it
 * @flags: ONECOPY_EXPORT_*
 * @address: a multiple of the page size
 * @length: in bytes, a multiple of the page size; ONECOPY_WHOLE with @address 0: all there is
 * @fd: out: the segment, close-on-exec
 * @reserved: zero
 *
 * Errors: EINVAL: not whole pages, or beyond the address space. EOPNOTSUPP: the range is an
 * attachment. EDQUOT: the user or the process has as many segments as it may. ENOMEM. EMFILE,
 * ENFILE: no more descriptors or files. EINTR: killed. ESRCH: the caller's memory is being reaped.
 */
struct onecopy_export {
	__u32 size;
	__u32 flags;
	__u64 address;
	__u64 length;
	__s32 fd;
	__u32 reserved;
};

#define ONECOPY_IOC_EXPORT _IO(ONECOPY_IOC_MAGIC, 0x01)
/* Holders may write; where the owner itself may not write, nobody may. */
#define ONECOPY_EXPORT_WRITE 0x1
#define ONECOPY_WHOLE ((__u64)-1)

/**
 * struct onecopy_prefault - map [address, address + length) of the caller's attachments now
 * @size: of this struct, as the caller knows it
 * @flags: ONECOPY_PREFAULT_WRITE: for writing
 * @address: where it begins, in the caller's memory
 * @length: in bytes
 * @done: out, also on error: bytes that are mapped
 *
 * An error is that of the first page that could not be mapped, at @address + @done; what lies
 * before it is mapped.
 *
 * Errors: EINVAL: beyond the address space, or no attachment there. EACCES: the mapping is to read.
 * EFAULT: a hole. EPERM: the owner may not write there. EOPNOTSUPP: the owner's page is itself an
 * attachment. ESRCH: the owner's memory is gone. EKEYREVOKED: revoked. ENOMEM. EINTR: killed.
 */
struct onecopy_prefault {
	__u32 size;
	__u32 flags;
	__u64 address;
	__u64 length;
	__u64 done;
};

#define ONECOPY_IOC_PREFAULT _IO(ONECOPY_IOC_MAGIC, 0x02)
#define ONECOPY_PREFAULT_WRITE 0x1

/**
 * struct onecopy_copy - copy bytes from one place to another
 * @size: of this struct, as the caller knows it
 * @flags: zero
 * @src_fd: the segment to copy from, or -1: the caller's memory
 * @dst_fd: the segment to copy to, or -1: the caller's memory
 * @src: an offset in the segment, or an address of the caller
 * @dst: an offset in the segment, or an address of the caller
 * @length: in bytes
 * @done: out, also on error: bytes that were copied
 *
 * It fails with the error of the first byte that could not be copied; @done bytes before it were.
 *
 * Errors: EBADF: not a descriptor. EINVAL: not a segment's, or beyond the segment. EACCES: @dst_fd
 * is to read. EFAULT: a hole, or the caller has no such memory. EPERM: the owner may not write
 * there. EOPNOTSUPP: the page is itself an attachment. ESRCH: the owner's memory is gone.
 * EKEYREVOKED: revoked. ENOMEM. EINTR: killed.
 */
struct onecopy_copy {
	__u32 size;
	__u32 flags;
	__s32 src_fd;
	__s32 dst_fd;
	__u64 src;
	__u64 dst;
	__u64 length;
	__u64 done;
};

#define ONECOPY_IOC_COPY _IO(ONECOPY_IOC_MAGIC, 0x03)

/**
 * struct onecopy_stats - what the module did, and what it holds
 * @size: of this struct, as the caller knows it
 * @reserved: zero
 * @segments: gauge: segments
 * @permits: gauge: xpmem access permits
 * @regions: gauge: knem regions; a copy by the thread between local memory and a region counts as
 *	one more until it ends
 * @pinned_pages: gauge: pages that knem regions pin
 * @attaches: mappings of segments that were made
 * @faults: page faults on attachments
 * @retries: faults that could not be answered at once
 * @mapped_small: pages mapped one by one
 * @mapped_huge: 2 MiB mappings
 * @invalidations: changes of owners' memory, each once for every segment that it touches
 * @holes: accesses that found no memory of the owner that may be used so
 * @copies: COPYs that were begun, and copies of knem that succeeded
 * @copied_bytes: what those copied
 * @attachments: gauge: mappings of segments; all VMAs into which one was split count as one
 * @spaces: gauge: address spaces that have segments
 * @workers: gauge: knem status arrays; each has a thread from the first copy for it on
 *
 * Sums are since the module was loaded, of all devices and users; gauges are of now.
 */
struct onecopy_stats {
	__u32 size;
	__u32 reserved;
	__u64 segments;
	__u64 permits;
	__u64 regions;
	__u64 pinned_pages;
	__u64 attaches;
	__u64 faults;
	__u64 retries;
	__u64 mapped_small;
	__u64 mapped_huge;
	__u64 invalidations;
	__u64 holes;
	__u64 copies;
	__u64 copied_bytes;
	__u64 attachments;
	__u64 spaces;
	__u64 workers;
};

#define ONECOPY_IOC_STATS _IO(ONECOPY_IOC_MAGIC, 0x04)

/* ---- on a segment ---- */

/**
 * struct onecopy_segment_info - what a segment is
 * @size: of this struct, as the caller knows it
 * @flags: out: ONECOPY_SEGMENT_*
 * @address: out: the owner's address of offset 0
 * @length: out: in bytes
 *
 * Every holder learns @address, to make an offset of an address that the owner names. So a grant
 * shows where its memory lies in the owner, as fdinfo of the descriptor does. A grant of
 * ONECOPY_WHOLE, whose @address is 0, shows nothing by it.
 */
struct onecopy_segment_info {
	__u32 size;
	__u32 flags;
	__u64 address;
	__u64 length;
};

#define ONECOPY_IOC_SEGMENT_INFO _IO(ONECOPY_IOC_MAGIC, 0x10)
#define ONECOPY_SEGMENT_WRITE 0x1 /* this descriptor may be mapped for writing */
#define ONECOPY_SEGMENT_DEAD 0x2 /* the owner's memory is gone, or the grant was revoked */
#define ONECOPY_SEGMENT_MINE 0x4 /* it is the caller's own memory */

/**
 * struct onecopy_restrict - a second descriptor of a segment, with the same or fewer rights
 * @size: of this struct, as the caller knows it
 * @flags: ONECOPY_EXPORT_WRITE: keep the right to write
 * @fd: out, close-on-exec
 * @reserved: zero
 *
 * Errors: EACCES: this descriptor has no right to write. EMFILE, ENFILE: no more descriptors or
 * files. ENOMEM.
 */
struct onecopy_restrict {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 reserved;
};

#define ONECOPY_IOC_RESTRICT _IO(ONECOPY_IOC_MAGIC, 0x11)

/*
 * Take the grant back from everybody, for good. By the owner's process only (EPERM). No argument.
 */
#define ONECOPY_IOC_REVOKE _IO(ONECOPY_IOC_MAGIC, 0x12)

/*
 * mmap(MAP_SHARED) of a segment: offset 0 is its first byte. A hole reads as zeroes, and counts in
 * holes. A store to a hole, or where the owner may not write, never reaches the owner, and counts
 * in holes. It goes to a scratch page, one for all such pages of the attachment. They show what was
 * stored until the next fault for such a store clears it. A dead segment can be mapped; it is all
 * hole.
 *
 * mmap(MAP_SHARED, PROT_READ) of one page at this offset: struct onecopy_generation. The mmap() of
 * programs of 32 bits has no such offset.
 *
 * Errors of both: EINVAL: not MAP_SHARED, or beyond the segment. EACCES: PROT_WRITE, but the
 * descriptor is to read, or it is the generation page. EDQUOT: the user has as many attachments as
 * it may. ENOMEM. To split an attachment beyond that quota is ENOMEM, too.
 */
#define ONECOPY_MMAP_GENERATION 0x4000000000000000ULL

/**
 * struct onecopy_generation - without a system call: was what I read the owner's?
 * @holes: accesses, by any holder, that found no memory of the owner that may be used so
 * @invalidations: how often the owner's mappings within the segment changed
 * @state: ONECOPY_STATE_*
 * @reserved: zero
 *
 * A reader through an attachment compares @holes and @state with what they were when it was mapped:
 * unchanged means that every byte was the owner's. They are loaded after the bytes: where a
 * CPU may change the order of loads (arm64), with an acquire fence in between. Once they
 * differ, map it anew: zeroes that stood for a hole may stay where they are for as long as the
 * mapping does.
 */
struct onecopy_generation {
	__u64 holes;
	__u64 invalidations;
	__u32 state;
	__u32 reserved;
};

#define ONECOPY_STATE_ALIVE 0
#define ONECOPY_STATE_OWNER_GONE 1
#define ONECOPY_STATE_REVOKED 2

#endif
