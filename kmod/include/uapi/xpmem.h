/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The XPMEM ioctl ABI, as /dev/xpmem speaks it. No command carries its size in its number. Ids are
 * opaque to callers. Programs of 32 bits are refused (ENOTTY): their libxpmem has other structs.
 *
 * Errors of all: XPMEM_ERRNO_NOPROC, from everything but VERSION. EFAULT: the struct is not
 * readable and writable. ENOTTY: no such command. "Errors" below are those beside these.
 */
#ifndef ONECOPY_UAPI_XPMEM_H
#define ONECOPY_UAPI_XPMEM_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The version of the interface: major (16 bits), minor (4), step (12). By XPMEM_CMD_VERSION. */
#define XPMEM_CURRENT_VERSION 0x00027004

#define XPMEM_IOC_MAGIC 'x'
#define XPMEM_CMD_VERSION _IO(XPMEM_IOC_MAGIC, 0)
#define XPMEM_CMD_MAKE _IO(XPMEM_IOC_MAGIC, 1)
#define XPMEM_CMD_REMOVE _IO(XPMEM_IOC_MAGIC, 2)
#define XPMEM_CMD_GET _IO(XPMEM_IOC_MAGIC, 3)
#define XPMEM_CMD_RELEASE _IO(XPMEM_IOC_MAGIC, 4)
#define XPMEM_CMD_ATTACH _IO(XPMEM_IOC_MAGIC, 5)
#define XPMEM_CMD_DETACH _IO(XPMEM_IOC_MAGIC, 6)
#define XPMEM_CMD_FORK_BEGIN _IO(XPMEM_IOC_MAGIC, 7)
#define XPMEM_CMD_FORK_END _IO(XPMEM_IOC_MAGIC, 8)

/* xpmem_cmd_get.flags */
#define XPMEM_RDONLY 0x1
#define XPMEM_RDWR 0x2
/* permit_type: permit_value is a mode like that of a file, 0 to 0777 */
#define XPMEM_PERMIT_MODE 0x1
/* xpmem_cmd_make.size: up to the end of the address space */
#define XPMEM_MAXADDR_SIZE ((__u64)-1)
/* "this process has not opened the device", beyond the kernel's errors: a child opens it anew */
#define XPMEM_ERRNO_NOPROC 2004

typedef __s64 xpmem_segid_t;
typedef __s64 xpmem_apid_t;

/**
 * struct xpmem_cmd_make - export memory of the caller
 * @vaddr: where it begins, a multiple of the page size
 * @size: in bytes, a multiple of the page size, or XPMEM_MAXADDR_SIZE
 * @permit_type: XPMEM_PERMIT_MODE
 * @pad: unused
 * @permit_value: the mode, 0 to 0777
 * @segid: out
 *
 * Errors: EINVAL: not whole pages, beyond the address space, or another permit. EOPNOTSUPP: the
 * range is an attachment. EDQUOT: the user or the process has as many segments as it may. ENOMEM.
 * EINTR: killed. ESRCH: the caller's memory is being reaped.
 */
struct xpmem_cmd_make {
	__u64 vaddr;
	__u64 size;
	__s32 permit_type;
	__u32 pad;
	__u64 permit_value;
	xpmem_segid_t segid;
};

/**
 * struct xpmem_cmd_remove - take a segment back from everybody
 * @segid: one of the caller's
 *
 * Errors: EINVAL: not a valid id (zero or negative). ENOENT: no such segment. EACCES: it was not
 * made by this file.
 */
struct xpmem_cmd_remove {
	xpmem_segid_t segid;
};

/**
 * struct xpmem_cmd_get - ask for access to a segment
 * @segid: the segment
 * @flags: XPMEM_RDONLY or XPMEM_RDWR
 * @permit_type: XPMEM_PERMIT_MODE
 * @permit_value: zero
 * @apid: out: the permit
 *
 * Errors: EINVAL: other flags or permits, or not a valid id (zero or negative). ENOENT: no such
 * segment. EACCES: the mode does not allow it. EDQUOT: the user has as many permits as it may.
 * ENFILE, ENOMEM.
 */
struct xpmem_cmd_get {
	xpmem_segid_t segid;
	__s32 flags;
	__s32 permit_type;
	__u64 permit_value;
	xpmem_apid_t apid;
};

/**
 * struct xpmem_cmd_release - give a permit back, with what was attached through it
 * @apid: the permit
 *
 * Errors: EINVAL: not a valid id (zero or negative). ENOENT: no such permit. ENOMEM, or EINTR:
 * killed; the permit is gone then, too.
 */
struct xpmem_cmd_release {
	xpmem_apid_t apid;
};

/**
 * struct xpmem_cmd_attach - map bytes of a segment
 * @apid: the permit
 * @offset: of the first byte, in the segment
 * @size: in bytes
 * @vaddr: in: where, or zero; out: where it lies
 * @fd: unused
 * @flags: unused
 *
 * Errors: EINVAL: no bytes, beyond the segment, not at whole pages, over another attachment or over
 * what is attached. Also EINVAL: not a valid id (zero or negative). ENOENT: no such permit, or the
 * segment is dead. EDQUOT: the user has as many attachments as it may. ENOMEM. EINTR: killed.
 */
struct xpmem_cmd_attach {
	xpmem_apid_t apid;
	__s64 offset;
	__u64 size;
	__u64 vaddr;
	__s32 fd;
	__s32 flags;
};

/**
 * struct xpmem_cmd_detach - unmap an attachment
 * @vaddr: any address within
 *
 * Where nothing is mapped it succeeds.
 *
 * Errors: EINVAL: what is mapped there is no attachment. ENOMEM. EINTR: killed.
 */
struct xpmem_cmd_detach {
	__u64 vaddr;
};

#endif
