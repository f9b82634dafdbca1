// SPDX-License-Identifier: MIT OR Apache-2.0
/* libxpmem over the ioctls of /dev/xpmem: opens the device at the first call, once per process. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "xpmem.h"

/*
 * The kernel's header says the same. The compiler compares constants, since it takes a second
 * definition only where that is the same as the first; structures are compared here.
 */
static const size_t lib_maxaddr_size = XPMEM_MAXADDR_SIZE;
#undef XPMEM_MAXADDR_SIZE
#define xpmem_cmd_make kernel_cmd_make
#define xpmem_cmd_remove kernel_cmd_remove
#define xpmem_cmd_get kernel_cmd_get
#define xpmem_cmd_release kernel_cmd_release
#define xpmem_cmd_attach kernel_cmd_attach
#define xpmem_cmd_detach kernel_cmd_detach
#include "../include/uapi/xpmem.h"
#undef xpmem_cmd_make
#undef xpmem_cmd_remove
#undef xpmem_cmd_get
#undef xpmem_cmd_release
#undef xpmem_cmd_attach
#undef xpmem_cmd_detach

#define SAME_SIZE(command) \
	static_assert(sizeof(struct xpmem_cmd_##command) == sizeof(struct kernel_cmd_##command), \
		      #command)
#define SAME(command, member) \
	static_assert(offsetof(struct xpmem_cmd_##command, member) == \
			      offsetof(struct kernel_cmd_##command, member) && \
		      sizeof(((struct xpmem_cmd_##command *)0)->member) == \
			      sizeof(((struct kernel_cmd_##command *)0)->member), \
		      #command "." #member)
SAME_SIZE(make);
SAME(make, vaddr);
SAME(make, size);
SAME(make, permit_type);
SAME(make, permit_value);
SAME(make, segid);
SAME_SIZE(remove);
SAME(remove, segid);
SAME_SIZE(get);
SAME(get, segid);
SAME(get, flags);
SAME(get, permit_type);
SAME(get, permit_value);
SAME(get, apid);
SAME_SIZE(release);
SAME(release, apid);
SAME_SIZE(attach);
SAME(attach, apid);
SAME(attach, offset);
SAME(attach, size);
SAME(attach, vaddr);
SAME(attach, fd);
SAME(attach, flags);
SAME_SIZE(detach);
SAME(detach, vaddr);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Under the lock: */
static int device = -1;
static struct stat is; /* what was opened */
static unsigned long openings; /* so far; 0 stands for none */
static int forking; /* could the thread that forks be cancelled? */

/* Nobody is cancelled with the lock: open() and close() are where that happens. */
static int locked(void)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&lock);
	return cancel;
}

static void unlock(int cancel)
{
	pthread_mutex_unlock(&lock);
	pthread_setcancelstate(cancel, NULL);
}

static void before_fork(void)
{
	forking = locked();
}

static void in_parent(void)
{
	unlock(forking);
}

/*
 * The state behind the descriptor is the parent's: a child opens its own. The program may have
 * closed what it does not know of; the number is another file's then, and not ours to close.
 */
static void in_child(void)
{
	struct stat now;

	if (device >= 0 && !fstat(device, &now) && now.st_dev == is.st_dev &&
	    now.st_ino == is.st_ino && now.st_rdev == is.st_rdev)
		close(device);
	device = -1;
	unlock(forking);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

/*
 * The descriptor. The one of opening *stale proved useless: another then, but the same for all
 * threads that found that. Not told by its number, which the next opening may have again. *stale is
 * the opening of the one that is returned.
 */
static int opened(unsigned long *stale)
{
	int fd, cancel;

	pthread_once(&once, watch_forks);
	cancel = locked();
	if (device < 0 || openings == *stale) {
		device = open(XPMEM_DEV_PATH, O_RDWR | O_CLOEXEC);
		if (device >= 0)
			openings++;
		if (device >= 0 && fstat(device, &is))
			is = (struct stat){ 0 };
	}
	*stale = openings;
	fd = device;
	unlock(cancel);
	return fd;
}

/* Whether the number is still the device's that was opened. */
static int names_device(int fd)
{
	struct stat now;
	int same, cancel;

	cancel = locked();
	same = fd == device && !fstat(fd, &now) && now.st_dev == is.st_dev &&
	       now.st_ino == is.st_ino && now.st_rdev == is.st_rdev;
	unlock(cancel);
	return same;
}

static int call(unsigned long command, void *argument)
{
	unsigned long opening = 0;
	int fd = opened(&opening);
	int result;

	if (fd < 0)
		return -1;
	result = ioctl(fd, command, argument);
	if (result >= 0)
		return result;
	/*
	 * A child that was made without fork(3)'s handlers has its parent's descriptor. Or a
	 * program may have closed what it does not know of, so that the number is free or another
	 * file's by now. The number is not ours to close then.
	 */
	if (errno != XPMEM_ERRNO_NOPROC && errno != EBADF && errno != ENOTTY)
		return -1;
	/* The device's own answer, as to a program of 32 bits. */
	if (errno == ENOTTY && names_device(fd)) {
		errno = ENOTTY;
		return -1;
	}
	fd = opened(&opening);
	return fd < 0 ? -1 : ioctl(fd, command, argument);
}

int xpmem_version(void)
{
	return call(XPMEM_CMD_VERSION, NULL);
}

xpmem_segid_t xpmem_make(void *vaddr, size_t size, int permit_type, void *permit_value)
{
	struct xpmem_cmd_make make = {
		.vaddr = (uintptr_t)vaddr,
		.size = size == lib_maxaddr_size ? XPMEM_MAXADDR_SIZE : size,
		.permit_type = permit_type,
		.permit_value = (uintptr_t)permit_value,
	};

	return call(XPMEM_CMD_MAKE, &make) < 0 ? -1 : make.segid;
}

int xpmem_remove(xpmem_segid_t segid)
{
	struct xpmem_cmd_remove remove = { .segid = segid };

	return call(XPMEM_CMD_REMOVE, &remove) < 0 ? -1 : 0;
}

xpmem_apid_t xpmem_get(xpmem_segid_t segid, int flags, int permit_type, void *permit_value)
{
	struct xpmem_cmd_get get = {
		.segid = segid,
		.flags = flags,
		.permit_type = permit_type,
	};

	/* No permit of today has a value on this side; callers pass what they like. */
	(void)permit_value;
	return call(XPMEM_CMD_GET, &get) < 0 ? -1 : get.apid;
}

int xpmem_release(xpmem_apid_t apid)
{
	struct xpmem_cmd_release release = { .apid = apid };

	return call(XPMEM_CMD_RELEASE, &release) < 0 ? -1 : 0;
}

void *xpmem_attach(struct xpmem_addr addr, size_t size, void *vaddr)
{
	struct xpmem_cmd_attach attach = {
		.apid = addr.apid,
		.offset = addr.offset,
		.size = size,
		.vaddr = (uintptr_t)vaddr,
	};

	return call(XPMEM_CMD_ATTACH, &attach) < 0 ? (void *)-1 : (void *)(uintptr_t)attach.vaddr;
}

int xpmem_detach(void *vaddr)
{
	struct xpmem_cmd_detach detach = { .vaddr = (uintptr_t)vaddr };

	return call(XPMEM_CMD_DETACH, &detach) < 0 ? -1 : 0;
}
