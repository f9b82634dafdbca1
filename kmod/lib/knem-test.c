// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Uses KNEM as programs that were written for it do: knem_io.h, ioctls, the status array. Run by
 * root with the device, it prints a line per test; exit status 0 if all are well.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "knem_io.h"

/* What programs that were compiled long ago send. */
static_assert(KNEM_CMD_GET_INFO == 0x40104b10, "GET_INFO");
static_assert(KNEM_CMD_BIND_OFFLOAD == 0x80104b11, "BIND_OFFLOAD");
static_assert(KNEM_CMD_INIT_SEND == 0xc0184b20, "INIT_SEND");
static_assert(KNEM_CMD_CREATE_REGION == 0xc0204b21, "CREATE_REGION");
static_assert(KNEM_CMD_DESTROY_REGION == 0x80084b22, "DESTROY_REGION");
static_assert(KNEM_CMD_INIT_ASYNC_RECV == 0x80204b30, "INIT_ASYNC_RECV");
static_assert(KNEM_CMD_SYNC_RECV == 0x80204b31, "SYNC_RECV");
static_assert(KNEM_CMD_COPY == 0x80304b32, "COPY");
static_assert(KNEM_CMD_INLINE_COPY == 0x80304b33, "INLINE_COPY");
static_assert(KNEM_CMD_COPY_BOUNDED == 0x80384b34, "COPY_BOUNDED");
static_assert(KNEM_CMD_INLINE_COPY_BOUNDED == 0x80384b35, "INLINE_COPY_BOUNDED");
static_assert(offsetof(struct knem_cmd_create_region, cookie) == 24, "cookie");
static_assert(offsetof(struct knem_cmd_inline_copy, flags) == 32, "flags");
static_assert(KNEM_FLAG_ANY_COPY_MASK == 0x5f && KNEM_FLAG_ANY_CREATE_MASK == 0xa0, "masks");
static_assert(KNEM_FLAG_ANY_ASYNC_MASK == 0xe && KNEM_FLAG_ANY_DMA_MASK == 0x7, "masks");

#define LENGTH 65536
#define SLOTS_MAX 65536

static uint32_t slots; /* an array has whole pages */
static int fd;
static volatile knem_status_t *status;
static unsigned char *from, *to;

static void prepare(int seed)
{
	int i;

	for (i = 0; i < LENGTH; i++)
		from[i] = (unsigned char)(i * 7 + seed);
	memset(to, 0xee, LENGTH);
}

static int create(uint32_t flags, knem_cookie_t *cookie)
{
	struct knem_cmd_param_iovec vector[2] = {
		{ (uintptr_t)from, 1000 },
		{ (uintptr_t)from + 1000, LENGTH - 1000 },
	};
	struct knem_cmd_create_region region = {
		.iovec_array = (uintptr_t)vector,
		.iovec_nr = 2,
		.flags = flags,
		.protection = PROT_READ,
	};

	if (ioctl(fd, KNEM_CMD_CREATE_REGION, &region))
		return -1;
	*cookie = region.cookie;
	return 0;
}

static int receive(knem_cookie_t cookie, uint32_t flags, uint32_t slot, uint32_t *now)
{
	struct knem_cmd_param_iovec vector = { (uintptr_t)to, LENGTH };
	struct knem_cmd_inline_copy copy = {
		.local_iovec_array = (uintptr_t)&vector,
		.local_iovec_nr = 1,
		.remote_cookie = cookie,
		.flags = flags,
		.current_status = 99,
		.async_status_index = slot,
	};
	int err = ioctl(fd, KNEM_CMD_INLINE_COPY, &copy);

	*now = copy.current_status;
	return err;
}

/* Until the array has a result, for ten seconds at most. */
static int result(uint32_t slot)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	int i;

	for (i = 0; i < 10000 && status[slot] == KNEM_STATUS_PENDING; i++)
		nanosleep(&pause, NULL);
	return status[slot];
}

static int info(void)
{
	struct knem_cmd_info info;

	CHECK(!ioctl(fd, KNEM_CMD_GET_INFO, &info));
	CHECK(info.abi == KNEM_ABI_VERSION);
	CHECK(!(info.features & ~KNEM_FEATURE_DMA));
	return 1;
}

/* A copy that needs the array fails without one, whatever makes it need it. */
static int no_array(void)
{
	static const uint32_t flags[] = { KNEM_FLAG_ASYNCDMACOMPLETE, KNEM_FLAG_DMATHREAD,
					  KNEM_FLAG_MEMCPYTHREAD };
	knem_cookie_t cookie;
	uint32_t now;
	size_t i;

	CHECK(!create(0, &cookie));
	for (i = 0; i < 3; i++)
		CHECK(receive(cookie, flags[i], 0, &now) == -1 && errno == EINVAL);
	CHECK(!ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie));
	return 1;
}

static int array(void)
{
	status = mmap(NULL, 32, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		      KNEM_STATUS_ARRAY_FILE_OFFSET);
	CHECK(status != MAP_FAILED);
	CHECK(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		   KNEM_STATUS_ARRAY_FILE_OFFSET) == MAP_FAILED);
	return 1;
}

/*
 * Each asynchronous flag brings the result into the array. Only a thread that copies may leave it
 * pending.
 */
static int asynchronous(void)
{
	uint32_t flags, now, slot = 3;
	knem_cookie_t cookie;

	for (flags = 0; flags <= KNEM_FLAG_ANY_ASYNC_MASK; flags += 2) {
		prepare(flags);
		CHECK(!create(KNEM_FLAG_SINGLEUSE, &cookie));
		status[slot] = KNEM_STATUS_FAILED;
		CHECK(!receive(cookie, flags | KNEM_FLAG_PINLOCAL, slot, &now));
		if (!(flags & KNEM_FLAG_MEMCPYTHREAD))
			CHECK(now == KNEM_STATUS_SUCCESS);
		CHECK(now == KNEM_STATUS_SUCCESS || now == KNEM_STATUS_PENDING);
		if (flags)
			CHECK(result(slot) == KNEM_STATUS_SUCCESS);
		else
			CHECK(status[slot] == KNEM_STATUS_FAILED);
		CHECK(!memcmp(from, to, LENGTH));
		CHECK(receive(cookie, flags, slot, &now) == -1 && errno == EINVAL);
		slot++;
	}
	CHECK(!create(0, &cookie));
	CHECK(receive(cookie, KNEM_FLAG_ASYNCDMACOMPLETE, slots, &now) == -1 && errno == EINVAL);
	CHECK(!ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie));
	return 1;
}

/*
 * Flags of other commands, and unknown ones, are not looked at; of an engine that is not there, the
 * copy is refused.
 */
static int masks(void)
{
	knem_cookie_t cookie;
	uint32_t now;

	prepare(1);
	CHECK(!create(0x80000000 | KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_PINLOCAL, &cookie));
	CHECK(!receive(cookie, 0x80000000 | KNEM_FLAG_SINGLEUSE | KNEM_FLAG_ANY_USER_ACCESS, -1,
		       &now));
	CHECK(now == KNEM_STATUS_SUCCESS);
	CHECK(!memcmp(from, to, LENGTH));
	/* SINGLEUSE of a copy meant nothing. */
	CHECK(!receive(cookie, 0, -1, &now) && now == KNEM_STATUS_SUCCESS);
	CHECK(receive(cookie, KNEM_FLAG_DMA, -1, &now) == -1 && errno == EINVAL);
	CHECK(!ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie));
	CHECK(ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie) == -1 && errno == EINVAL);
	return 1;
}

/* The form before regions: asynchronous flags of a synchronous receive do not count. */
static int old(void)
{
	static const uint32_t flags[] = { 0, KNEM_FLAG_MEMCPYTHREAD, KNEM_FLAG_ANY_ASYNC_MASK };
	struct knem_cmd_param_iovec out = { (uintptr_t)from, LENGTH };
	struct knem_cmd_param_iovec in = { (uintptr_t)to, LENGTH };
	struct knem_cmd_init_send_param send = { .send_iovec_array = (uintptr_t)&out,
						 .send_iovec_nr = 1 };
	size_t i;

	for (i = 0; i < 3; i++) {
		struct knem_cmd_sync_recv_param recv = {
			.recv_iovec_array = (uintptr_t)&in,
			.recv_iovec_nr = 1,
			.flags = flags[i],
			.status = 99,
		};
		struct knem_cmd_init_async_recv_param later = {
			.recv_iovec_array = (uintptr_t)&in,
			.recv_iovec_nr = 1,
			.status_index = 23,
			.flags = flags[i],
		};

		prepare(i + 50);
		send.flags = flags[i];
		CHECK(!ioctl(fd, KNEM_CMD_INIT_SEND, &send));
		recv.send_cookie = send.send_cookie;
		CHECK(!ioctl(fd, KNEM_CMD_SYNC_RECV, &recv));
		CHECK(recv.status == KNEM_STATUS_SUCCESS);
		CHECK(!memcmp(from, to, LENGTH));

		prepare(i + 60);
		CHECK(!ioctl(fd, KNEM_CMD_INIT_SEND, &send));
		later.send_cookie = send.send_cookie;
		status[23] = KNEM_STATUS_PENDING;
		CHECK(!ioctl(fd, KNEM_CMD_INIT_ASYNC_RECV, &later));
		CHECK(result(23) == KNEM_STATUS_SUCCESS);
		CHECK(!memcmp(from, to, LENGTH));
	}
	return 1;
}

/*
 * A structure can be used again: only current_status is written. What lies beyond the end is no
 * failure.
 */
static int bounds(void)
{
	struct knem_cmd_param_iovec vector = { (uintptr_t)to, LENGTH };
	struct knem_cmd_inline_copy_bounded copy, before;
	knem_cookie_t cookie;

	prepare(3);
	CHECK(!create(0, &cookie));
	memset(&copy, 0, sizeof(copy));
	copy.local_iovec_array = (uintptr_t)&vector;
	copy.local_iovec_nr = 1;
	copy.remote_cookie = cookie;
	copy.remote_offset = LENGTH - 100;
	copy.length = LENGTH;
	before = copy;
	CHECK(!ioctl(fd, KNEM_CMD_INLINE_COPY_BOUNDED, &copy));
	CHECK(copy.current_status == KNEM_STATUS_SUCCESS);
	CHECK(!memcmp(to, from + LENGTH - 100, 100) && to[100] == 0xee);
	copy.current_status = before.current_status;
	CHECK(!memcmp(&copy, &before, sizeof(copy)));
	memset(to, 0xee, LENGTH);
	copy.remote_offset = 2 * LENGTH;
	CHECK(!ioctl(fd, KNEM_CMD_INLINE_COPY_BOUNDED, &copy));
	CHECK(copy.current_status == KNEM_STATUS_SUCCESS && to[0] == 0xee);
	CHECK(!ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie));
	return 1;
}

/*
 * As many completions as the array has entries wait to be read, in their order; one more is
 * refused.
 */
static int notified(void)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	static uint32_t seen[SLOTS_MAX];
	knem_cookie_t cookie;
	uint32_t now, i;
	ssize_t got;

	prepare(9);
	CHECK(!create(0, &cookie));
	for (i = 0; i < slots; i++)
		CHECK(!receive(cookie, KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD, slots - 1 - i,
			       &now));
	CHECK(receive(cookie, KNEM_FLAG_MEMCPYTHREAD | KNEM_FLAG_NOTIFY_FD, 0, &now) == -1 &&
	      errno == EBUSY);
	CHECK(poll(&wait, 1, 60000) == 1 && (wait.revents & POLLIN));
	for (i = 0; i < slots; i += got / 4) {
		got = read(fd, seen + i, (slots - i) * sizeof(*seen));
		CHECK(got > 0 && got % 4 == 0);
	}
	for (i = 0; i < slots; i++)
		CHECK(seen[i] == slots - 1 - i);
	CHECK(!ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie));
	return 1;
}

int main(void)
{
	from = malloc(LENGTH);
	to = malloc(LENGTH);
	if (!from || !to)
		return 1;
	prepare(0);
	slots = sysconf(_SC_PAGESIZE);
	if (slots > SLOTS_MAX)
		return 1;
	fd = open(KNEM_DEVICE_FILENAME, O_RDWR);
	if (fd < 0) {
		perror("open " "/dev/knem");
		return 1;
	}
	run("info", info);
	run("no_array", no_array);
	run("array", array);
	if (status == MAP_FAILED)
		return 1;
	run("asynchronous", asynchronous);
	run("masks", masks);
	run("old", old);
	run("bounds", bounds);
	run("notified", notified);
	printf("knem: %d failed\n", failed);
	return failed != 0;
}
