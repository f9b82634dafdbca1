/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libxpmem: memory of one process, attached by another, through /dev/xpmem.
 *
 * Functions return -1, xpmem_attach() (void *)-1, and set errno. EINVAL: an argument is not as
 * below, not whole pages or beyond the memory; or something else is mapped at vaddr. EACCES: it is
 * not allowed, or is not the caller's. ENOENT: the id names nothing, or its owner is gone. ENOMEM:
 * there is no room. EDQUOT: the user or the process has as many as it may. ENFILE: the system has
 * too many files. EOPNOTSUPP: the memory is itself an attachment. ESRCH: the caller's memory is
 * being reaped. EINTR: killed. Also the errors of open(2) on /dev/xpmem.
 *
 * Any thread may call them. A forked child has none of its parent's segments, permits and
 * attachments, and may make its own.
 */
#ifndef _XPMEM_H
#define _XPMEM_H

#include <linux/ioctl.h>
#include <linux/types.h>
#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the interface: major (16 bits), minor (4), step (12). */
#define XPMEM_CURRENT_VERSION 0x00027004
#define XPMEM_VERSION_MAJOR(version) ((version) >> 16)
#define XPMEM_VERSION_MINOR(version) (((version) >> 12) & 0xf)
#define XPMEM_VERSION_STEP(version) ((version) & 0xfff)

/* xpmem_get(): for reading; for reading and writing. */
#define XPMEM_RDONLY 0x1
#define XPMEM_RDWR 0x2
/* permit_type: permit_value is a mode like that of a file, as a pointer: (void *)0600. */
#define XPMEM_PERMIT_MODE 0x1
/* xpmem_make(): up to the end of the address space. */
#define XPMEM_MAXADDR_SIZE ((size_t)(-1L))

/*
 * errno of the module for a process that has not opened the device, as a forked child; the
 * functions here open it anew.
 */
#define XPMEM_ERRNO_NOPROC 2004

/* What may be sent to another process. Opaque, positive, of at most 56 bits. */
typedef __s64 xpmem_segid_t;
/* What that process got for it. Opaque. */
typedef __s64 xpmem_apid_t;

struct xpmem_addr {
	xpmem_apid_t apid;
	off_t offset; /* from the segment's start; a multiple of the page size */
};

/*
 * The device itself, for programs that speak to it without the functions here. What is "out" the
 * device writes. Errors are those above; ioctl() gives them as any. A command that the device has
 * not is ENOTTY.
 */
#define XPMEM_DEV_PATH "/dev/xpmem"

#define XPMEM_IOC_MAGIC 'x'
#define XPMEM_CMD_VERSION _IO(XPMEM_IOC_MAGIC, 0) /* the result is the version */
#define XPMEM_CMD_MAKE _IO(XPMEM_IOC_MAGIC, 1)
#define XPMEM_CMD_REMOVE _IO(XPMEM_IOC_MAGIC, 2)
#define XPMEM_CMD_GET _IO(XPMEM_IOC_MAGIC, 3)
#define XPMEM_CMD_RELEASE _IO(XPMEM_IOC_MAGIC, 4)
#define XPMEM_CMD_ATTACH _IO(XPMEM_IOC_MAGIC, 5)
#define XPMEM_CMD_DETACH _IO(XPMEM_IOC_MAGIC, 6)
#define XPMEM_CMD_FORK_BEGIN _IO(XPMEM_IOC_MAGIC, 7)
#define XPMEM_CMD_FORK_END _IO(XPMEM_IOC_MAGIC, 8)

/* As xpmem_make(). */
struct xpmem_cmd_make {
	__u64 vaddr;
	__u64 size;
	__s32 permit_type;
	__u32 pad; /* unused */
	__u64 permit_value;
	xpmem_segid_t segid; /* out */
};

/* As xpmem_remove(). */
struct xpmem_cmd_remove {
	xpmem_segid_t segid;
};

/* As xpmem_get(). */
struct xpmem_cmd_get {
	xpmem_segid_t segid;
	__s32 flags;
	__s32 permit_type;
	__u64 permit_value; /* zero */
	xpmem_apid_t apid; /* out */
};

/* As xpmem_release(). */
struct xpmem_cmd_release {
	xpmem_apid_t apid;
};

/* As xpmem_attach(). */
struct xpmem_cmd_attach {
	xpmem_apid_t apid;
	__s64 offset;
	__u64 size;
	__u64 vaddr; /* where, or zero; out: where it lies */
	__s32 fd; /* unused */
	__s32 flags; /* unused */
};

/* As xpmem_detach(). */
struct xpmem_cmd_detach {
	__u64 vaddr;
};

/* The version of the module's interface. */
int xpmem_version(void);
/* Export [vaddr, vaddr + size), multiples of the page size. */
xpmem_segid_t xpmem_make(void *vaddr, size_t size, int permit_type, void *permit_value);
/* End a segment of this process: what others attached of it is gone. */
int xpmem_remove(xpmem_segid_t segid);
/* Ask for access to a segment; permit_value is NULL. */
xpmem_apid_t xpmem_get(xpmem_segid_t segid, int flags, int permit_type, void *permit_value);
/* Give it back, and detach what was attached through it. */
int xpmem_release(xpmem_apid_t apid);
/* Map size bytes, at vaddr or, if that is NULL, where there is room. */
void *xpmem_attach(struct xpmem_addr addr, size_t size, void *vaddr);
/* Unmap the attachment that vaddr lies in. Where nothing is mapped it succeeds. */
int xpmem_detach(void *vaddr);

#ifdef __cplusplus
}
#endif

#endif
