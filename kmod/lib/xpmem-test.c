// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Uses libxpmem as its documentation says, and nothing else. One line per test; exit status 0 if
 * all are well.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "xpmem.h"

#define PAGES 16
#define FAIL ((void *)-1)

static size_t page;
static size_t size;

static uint64_t *memory(uint64_t seed)
{
	uint64_t *words =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t i;

	if (words == MAP_FAILED)
		abort();
	for (i = 0; i < size / 8; i++)
		words[i] = seed + i;
	return words;
}

/* Runs a part in a child; it gets what it needs by the fork. */
static int in_child(int (*part)(xpmem_segid_t), xpmem_segid_t segid)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		status = !part(segid);
		fflush(stdout);
		_exit(status);
	}
	CHECK(pid > 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	return 1;
}

static int version(void)
{
	int number = xpmem_version();

	CHECK(number > 0);
	CHECK(XPMEM_VERSION_MAJOR(number) == 2);
	return 1;
}

static int importer(xpmem_segid_t segid)
{
	struct xpmem_addr addr = { 0 };
	volatile uint64_t *view;
	size_t i;

	addr.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL);
	CHECK(addr.apid != -1);
	view = xpmem_attach(addr, size, NULL);
	CHECK(view != FAIL);
	for (i = 0; i < size / 8; i++)
		CHECK(view[i] == 100 + i);
	view[1] = 7;
	CHECK(!xpmem_detach((void *)view));

	addr.offset = 3 * page;
	view = xpmem_attach(addr, page, NULL);
	CHECK(view != FAIL);
	CHECK(view[0] == 100 + 3 * page / 8);
	/* Any address within an attachment names it. */
	CHECK(!xpmem_detach((char *)view + page / 2));
	CHECK(!xpmem_release(addr.apid));
	CHECK(xpmem_release(addr.apid) == -1);
	return 1;
}

static int make_get_attach(void)
{
	uint64_t *words = memory(100);
	xpmem_segid_t segid = xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)0600);

	CHECK(segid != -1);
	CHECK(in_child(importer, segid));
	CHECK(((volatile uint64_t *)words)[1] == 7);
	CHECK(!xpmem_remove(segid));
	CHECK(xpmem_remove(segid) == -1);
	CHECK(xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL) == -1);
	CHECK(!munmap(words, size));
	return 1;
}

static int importer_by_commands(xpmem_segid_t segid)
{
	struct xpmem_cmd_get get = {
		.segid = segid,
		.flags = XPMEM_RDWR,
		.permit_type = XPMEM_PERMIT_MODE,
	};
	struct xpmem_cmd_attach attach = { .offset = page, .size = 2 * page };
	struct xpmem_cmd_release release;
	struct xpmem_cmd_detach detach;
	int fd = open(XPMEM_DEV_PATH, O_RDWR | O_CLOEXEC);
	volatile uint64_t *view;
	size_t i;

	CHECK(fd >= 0);
	CHECK(!ioctl(fd, XPMEM_CMD_GET, &get));
	CHECK(get.apid > 0);
	attach.apid = get.apid;
	CHECK(!ioctl(fd, XPMEM_CMD_ATTACH, &attach));
	view = (uint64_t *)(uintptr_t)attach.vaddr;
	for (i = 0; i < 2 * page / 8; i++)
		CHECK(view[i] == 300 + page / 8 + i);
	view[0] = 9;
	detach.vaddr = attach.vaddr;
	CHECK(!ioctl(fd, XPMEM_CMD_DETACH, &detach));
	release.apid = get.apid;
	CHECK(!ioctl(fd, XPMEM_CMD_RELEASE, &release));
	CHECK(ioctl(fd, XPMEM_CMD_RELEASE, &release) == -1 && errno == ENOENT);
	CHECK(!close(fd));
	return 1;
}

/* A program that opens the device, and has no use for the library. */
static int commands_of_the_device(void)
{
	uint64_t *words = memory(300);
	struct xpmem_cmd_make make = {
		.vaddr = (uintptr_t)words,
		.size = size,
		.permit_type = XPMEM_PERMIT_MODE,
		.permit_value = 0600,
	};
	struct xpmem_cmd_remove remove;
	int fd = open(XPMEM_DEV_PATH, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK(ioctl(fd, XPMEM_CMD_VERSION) == xpmem_version());
	CHECK(!ioctl(fd, XPMEM_CMD_MAKE, &make));
	CHECK(make.segid > 0);
	CHECK(in_child(importer_by_commands, make.segid));
	CHECK(((volatile uint64_t *)words)[page / 8] == 9);
	remove.segid = make.segid;
	CHECK(!ioctl(fd, XPMEM_CMD_REMOVE, &remove));
	CHECK(ioctl(fd, XPMEM_CMD_REMOVE, &remove) == -1 && errno == ENOENT);
	CHECK(!ioctl(fd, XPMEM_CMD_FORK_BEGIN));
	CHECK(!ioctl(fd, XPMEM_CMD_FORK_END));
	CHECK(!close(fd));
	CHECK(!munmap(words, size));
	return 1;
}

static uint64_t *exported;

static int whole_importer(xpmem_segid_t segid)
{
	struct xpmem_addr addr = { .offset = (off_t)(uintptr_t)exported };
	volatile uint64_t *view;

	addr.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL);
	CHECK(addr.apid != -1);
	view = xpmem_attach(addr, size, NULL);
	CHECK(view != FAIL);
	CHECK(view[5] == 205);
	return 1;
}

static int whole_address_space(void)
{
	xpmem_segid_t segid = xpmem_make(NULL, XPMEM_MAXADDR_SIZE, XPMEM_PERMIT_MODE, (void *)0600);

	CHECK(segid != -1);
	exported = memory(200);
	CHECK(in_child(whole_importer, segid));
	CHECK(!xpmem_remove(segid));
	CHECK(!munmap(exported, size));
	return 1;
}

static int reader(xpmem_segid_t segid)
{
	struct xpmem_addr addr = { 0 };
	volatile uint64_t *view;

	addr.apid = xpmem_get(segid, XPMEM_RDONLY, XPMEM_PERMIT_MODE, NULL);
	CHECK(addr.apid != -1);
	view = xpmem_attach(addr, size, NULL);
	CHECK(view != FAIL);
	CHECK(view[0] == 300);
	CHECK(mprotect((void *)view, size, PROT_READ | PROT_WRITE) == -1);
	return 1;
}

static int for_reading(void)
{
	uint64_t *words = memory(300);
	xpmem_segid_t segid = xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)0600);

	CHECK(segid != -1);
	CHECK(in_child(reader, segid));
	CHECK(!xpmem_remove(segid));
	return 1;
}

static int forked(xpmem_segid_t segid)
{
	uint64_t *words = memory(400);
	xpmem_segid_t own;

	/* The parent's segment is not the child's to end; its own it may make and attach. */
	CHECK(xpmem_remove(segid) == -1);
	own = xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)0600);
	CHECK(own != -1);
	CHECK(own != segid);
	CHECK(in_child(importer, segid));
	CHECK(!xpmem_remove(own));
	return 1;
}

static int child_begins_anew(void)
{
	uint64_t *words = memory(100);
	xpmem_segid_t segid = xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)0600);

	CHECK(segid != -1);
	CHECK(in_child(forked, segid));
	CHECK(((volatile uint64_t *)words)[1] == 7);
	CHECK(!xpmem_remove(segid));
	return 1;
}

static int errors(void)
{
	uint64_t *words = memory(0);
	struct xpmem_addr addr = { 0 };

	CHECK(xpmem_make((char *)words + 1, size, XPMEM_PERMIT_MODE, (void *)0600) == -1 &&
	      errno == EINVAL);
	CHECK(xpmem_make(words, size, 0, (void *)0600) == -1 && errno == EINVAL);
	CHECK(xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)01000) == -1 && errno == EINVAL);
	CHECK(xpmem_get(12345, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL) == -1);
	CHECK(xpmem_attach(addr, size, NULL) == FAIL);
	CHECK(xpmem_detach(words) == -1 && errno == EINVAL);
	return 1;
}

static void *thread(void *argument)
{
	uint64_t *words = memory(500);
	xpmem_segid_t segid = xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)0600);
	struct xpmem_addr addr = { .apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL) };
	volatile uint64_t *view = xpmem_attach(addr, size, NULL);

	(void)argument;
	if (segid == -1 || addr.apid == -1 || view == FAIL || view[9] != 509)
		return FAIL;
	return xpmem_detach((void *)view) || xpmem_release(addr.apid) || xpmem_remove(segid) ?
		FAIL : NULL;
}

/* In a child, so that nothing is open yet. */
static int eight(xpmem_segid_t segid)
{
	pthread_t threads[8];
	void *result;
	int i;

	(void)segid;
	for (i = 0; i < 8; i++)
		CHECK(!pthread_create(&threads[i], NULL, thread, NULL));
	for (i = 0; i < 8; i++) {
		CHECK(!pthread_join(threads[i], &result));
		CHECK(!result);
	}
	return 1;
}

static int threads_at_once(void)
{
	int i;

	for (i = 0; i < 10; i++)
		CHECK(in_child(eight, 0));
	return 1;
}

static int closed_by_the_program(void)
{
	int fd;

	CHECK(xpmem_version() > 0);
	for (fd = 3; fd < 64; fd++)
		close(fd);
	CHECK(xpmem_version() > 0);
	return 1;
}

static void close_all(void)
{
	for (int fd = 3; fd < 64; fd++)
		close(fd);
}

static int other_file;

static int still_has_the_other(xpmem_segid_t unused)
{
	(void)unused;
	CHECK(fcntl(other_file, F_GETFD) != -1);
	CHECK(xpmem_version() > 0);
	CHECK(fcntl(other_file, F_GETFD) != -1);
	return 1;
}

/* The library's descriptor is closed, and its number another file's. A child keeps that. */
static int number_of_another_file(void)
{
	/* Its number is the next one again. */
	close_all();
	CHECK(xpmem_version() > 0);
	close_all();
	other_file = open("/dev/null", O_RDONLY);
	CHECK(other_file == 3);
	CHECK(in_child(still_has_the_other, 0));
	CHECK(fcntl(other_file, F_GETFD) != -1);
	CHECK(!close(other_file));
	return 1;
}

/*
 * Two threads find the descriptor closed before either opens it anew: both get the same one then.
 * What the library calls is ours here; the second to fail waits for the first.
 */
static pthread_barrier_t both_failed;
static atomic_int meeting; /* calls that fail are to meet */

int ioctl(int fd, unsigned long command, ...)
{
	va_list arguments;
	void *argument;
	int result;

	va_start(arguments, command);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	result = syscall(SYS_ioctl, fd, command, argument);
	if (result < 0 && errno == EBADF && atomic_fetch_sub(&meeting, 1) > 0) {
		pthread_barrier_wait(&both_failed);
		errno = EBADF;
	}
	return result;
}

static void *makes(void *words)
{
	return (void *)(intptr_t)xpmem_make(words, page, XPMEM_PERMIT_MODE, (void *)0600);
}

static int found_closed_at_once(void)
{
	uint64_t *words = memory(100);
	pthread_t threads[2];
	void *segid[2];
	int i;

	/* Its number is the next one again. */
	close_all();
	CHECK(xpmem_version() > 0);
	close_all();
	CHECK(!pthread_barrier_init(&both_failed, NULL, 2));
	atomic_store(&meeting, 2);
	for (i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, makes, words));
	for (i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], &segid[i]));
	CHECK(atomic_load(&meeting) == 0);
	atomic_store(&meeting, 0);
	/* Segments are those of one descriptor, by which both are found. */
	for (i = 0; i < 2; i++)
		CHECK(!xpmem_remove((intptr_t)segid[i]));
	CHECK(!munmap(words, size));
	return 1;
}

/* ---- what other implementations' tests do ---- */

/* One permit, two attachments: both show the same memory. */
static int twice(xpmem_segid_t segid)
{
	struct xpmem_addr addr = { .apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL) };
	volatile uint64_t *one = xpmem_attach(addr, size, NULL);
	volatile uint64_t *two = xpmem_attach(addr, size, NULL);
	size_t i;

	CHECK(one != FAIL && two != FAIL && one != two);
	for (i = 0; i < size / 8; i++) {
		CHECK(one[i] == i);
		one[i]++;
		two[i]++;
	}
	CHECK(!xpmem_detach((void *)one) && !xpmem_detach((void *)two) &&
	      !xpmem_release(addr.apid));
	return 1;
}

static int two_attachments(void)
{
	uint64_t *words = memory(0);
	xpmem_segid_t segid = xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)0666);
	size_t i;

	CHECK(segid != -1);
	CHECK(in_child(twice, segid));
	for (i = 0; i < size / 8; i++)
		CHECK(((volatile uint64_t *)words)[i] == i + 2);
	CHECK(!xpmem_remove(segid) && !munmap(words, size));
	return 1;
}

/* Two ids as text in 32 bytes, of which the last two are somebody else's. */
static char message[32];

static int both(xpmem_segid_t unused)
{
	xpmem_segid_t ids[2];
	int i;

	(void)unused;
	ids[0] = strtoll(message, NULL, 16);
	ids[1] = strtoll(message + strlen(message) + 1, NULL, 16);
	for (i = 0; i < 2; i++) {
		struct xpmem_addr addr = {
			.apid = xpmem_get(ids[i], XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
		};
		volatile uint64_t *view = xpmem_attach(addr, size, NULL);

		CHECK(addr.apid != -1 && view != FAIL);
		CHECK(view[3] == (uint64_t)(i + 1) * 1000 + 3);
		view[3] = i;
		CHECK(!xpmem_detach((void *)view) && !xpmem_release(addr.apid));
	}
	return 1;
}

static int two_segments(void)
{
	uint64_t *words[2] = { memory(1000), memory(2000) };
	xpmem_segid_t ids[2];
	int i, n;

	for (i = 0; i < 2; i++)
		ids[i] = xpmem_make(words[i], size, XPMEM_PERMIT_MODE, (void *)0666);
	CHECK(ids[0] != -1 && ids[1] != -1 && ids[0] != ids[1]);
	n = snprintf(message, sizeof(message) - 2, "%llx", (unsigned long long)ids[0]) + 1;
	n += snprintf(message + n, sizeof(message) - 2 - n, "%llx", (unsigned long long)ids[1]) + 1;
	CHECK(n <= (int)sizeof(message) - 2);
	CHECK(in_child(both, 0));
	for (i = 0; i < 2; i++) {
		CHECK(((volatile uint64_t *)words[i])[3] == (uint64_t)i);
		CHECK(!xpmem_remove(ids[i]) && !munmap(words[i], size));
	}
	return 1;
}

/* Bytes to and from a peer, so that both go on in turn. */
static int turns[2][2];

static int turn(int end)
{
	char byte = 1;

	CHECK(write(turns[end][1], &byte, 1) == 1);
	return 1;
}

static int wait_turn(int end)
{
	char byte;

	CHECK(read(turns[end][0], &byte, 1) == 1);
	return 1;
}

static int second_page(xpmem_segid_t segid)
{
	struct xpmem_addr addr = {
		.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
		.offset = page,
	};
	volatile uint64_t *view = xpmem_attach(addr, page, NULL);
	size_t i;

	CHECK(view != FAIL);
	for (i = 0; i < page / 8; i++)
		CHECK(view[i] == page / 8 + i);
	CHECK(turn(0) && wait_turn(1));
	for (i = 0; i < page / 8; i++) {
		CHECK(view[i] == page / 8 + i + 1);
		view[i]++;
	}
	CHECK(!xpmem_detach((void *)view) && !xpmem_release(addr.apid));
	return 1;
}

/*
 * The owner forks while a page is attached, and stores. The importer sees that, and the owner what
 * it stored.
 */
static int store_after_fork(void)
{
	uint64_t *words = memory(0);
	xpmem_segid_t segid = xpmem_make(words, size, XPMEM_PERMIT_MODE, (void *)0666);
	pid_t peer, child;
	int status;
	size_t i;

	CHECK(segid != -1);
	CHECK(!pipe(turns[0]) && !pipe(turns[1]));
	fflush(stdout);
	peer = fork();
	if (!peer) {
		status = !second_page(segid);
		fflush(stdout);
		_exit(status);
	}
	CHECK(peer > 0 && wait_turn(0));
	child = fork();
	if (!child) {
		pause();
		_exit(0);
	}
	for (i = 0; i < size / 8; i++)
		((volatile uint64_t *)words)[i]++;
	CHECK(child > 0 && turn(1));
	CHECK(waitpid(peer, &status, 0) == peer && WIFEXITED(status) && !WEXITSTATUS(status));
	for (i = 0; i < size / 8; i++)
		CHECK(((volatile uint64_t *)words)[i] == i + 1 + (i / (page / 8) == 1));
	CHECK(!kill(child, SIGTERM) && waitpid(child, &status, 0) == child);
	CHECK(!xpmem_remove(segid) && !munmap(words, size));
	return 1;
}

static size_t length;
static unsigned int number;

/*
 * One of several peers, each in its turn, adds to every page of a segment of the whole address
 * space.
 */
static int adds(xpmem_segid_t segid)
{
	struct xpmem_addr addr = {
		.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
		.offset = (off_t)(uintptr_t)exported,
	};
	volatile uint64_t *view = xpmem_attach(addr, length, NULL);
	size_t i, before = (size_t)number * (number - 1) / 2;

	CHECK(view != FAIL);
	for (i = 0; i < length / page; i++) {
		CHECK(view[i * (page / 8)] == i * before);
		view[i * (page / 8)] += i * number;
	}
	CHECK(!xpmem_detach((void *)view) && !xpmem_release(addr.apid));
	return 1;
}

static int many_peers(void)
{
	static const unsigned int peers[] = { 1, 5 }, pages[] = { 1, 2, 5, 100, 1000 };
	xpmem_segid_t segid = xpmem_make(NULL, XPMEM_MAXADDR_SIZE, XPMEM_PERMIT_MODE, (void *)0600);
	size_t i, j;

	CHECK(segid != -1);
	for (i = 0; i < 2; i++) {
		for (j = 0; j < 5; j++) {
			length = pages[j] * page;
			exported = mmap(NULL, length, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			CHECK(exported != MAP_FAILED);
			for (number = 1; number <= peers[i]; number++)
				CHECK(in_child(adds, segid));
			CHECK(!munmap(exported, length));
		}
	}
	CHECK(!xpmem_remove(segid));
	return 1;
}

static size_t hole, area;
static unsigned int areas;

/* Everything at once is attached, areas with holes between them, and only areas are touched. */
static int between_holes(xpmem_segid_t segid)
{
	struct xpmem_addr addr = {
		.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
		.offset = (off_t)(uintptr_t)exported,
	};
	volatile uint64_t *view = xpmem_attach(addr, length, NULL);
	size_t i, at, n = 1;

	CHECK(view != FAIL);
	for (i = 0; i < areas; i++)
		for (at = 0; at < area; at += 512)
			CHECK(view[(hole + i * (area + hole) + at) / 8] == n++);
	CHECK(!xpmem_detach((void *)view) && !xpmem_release(addr.apid));
	return 1;
}

/* A store between two areas: the signal for memory that is not there. */
static int into_a_hole(xpmem_segid_t segid)
{
	struct xpmem_addr addr = {
		.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
		.offset = (off_t)(uintptr_t)exported,
	};
	volatile uint64_t *view = xpmem_attach(addr, length, NULL);
	pid_t pid;
	int status;

	CHECK(view != FAIL);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		/* Attachments are not inherited: its own. */
		addr.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL);
		view = xpmem_attach(addr, length, NULL);
		if (view == FAIL)
			_exit(1);
		view[(hole + area) / 8] = 1;
		_exit(2);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	return 1;
}

static int holes(void)
{
	static const unsigned int gaps[] = { 0, 1, 64 }, pages[] = { 1, 32 }, counts[] = { 16, 64 };
	xpmem_segid_t segid = xpmem_make(NULL, XPMEM_MAXADDR_SIZE, XPMEM_PERMIT_MODE, (void *)0600);
	struct rlimit none = { 0 };
	size_t i, j, at, n;
	char *base;
	int shape;

	CHECK(segid != -1);
	CHECK(!setrlimit(RLIMIT_CORE, &none));
	for (shape = 0; shape < 12; shape++) {
		hole = gaps[shape % 3] * page;
		area = pages[shape / 3 % 2] * page;
		areas = counts[shape / 6];
		length = areas * (hole + area) + hole;
		base = mmap(NULL, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(base != MAP_FAILED);
		exported = (uint64_t *)base;
		for (i = 0, n = 1; i < areas; i++) {
			for (at = 0; at < area; at += 512)
				exported[(hole + i * (area + hole) + at) / 8] = n++;
			CHECK(!hole || !munmap(base + i * (area + hole), hole));
		}
		CHECK(!hole || !munmap(base + areas * (area + hole), hole));
		CHECK(in_child(between_holes, segid));
		if (hole && shape < 3)
			CHECK(in_child(into_a_hole, segid));
		for (j = 0; j < areas; j++)
			CHECK(!munmap(base + hole + j * (area + hole), area));
	}
	CHECK(!xpmem_remove(segid));
	return 1;
}

/* Peers that go on at once wait for a byte each before they begin. */
static int gate[2];

#define MOST_PEERS 4

/* Runs a part in so many peers at once. */
static int in_peers(unsigned int count, int (*part)(xpmem_segid_t), xpmem_segid_t segid)
{
	int status, good = 1;
	pid_t pids[MOST_PEERS];
	unsigned int i;
	char byte;

	CHECK(!pipe(gate));
	fflush(stdout);
	for (i = 0; i < count; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			number = i + 1;
			close(gate[1]);
			status = read(gate[0], &byte, 1) != 0 || !part(segid);
			fflush(stdout);
			_exit(status);
		}
		CHECK(pids[i] > 0);
	}
	/* A reader finds the end. */
	close(gate[1]);
	close(gate[0]);
	for (i = 0; i < count; i++)
		good &= waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status) &&
			!WEXITSTATUS(status);
	return good;
}

/* In what order pages are gone through. */
static enum { FORWARDS, BACKWARDS, ANYHOW } order;

static size_t nth(size_t i)
{
	size_t pages = length / page;

	/*
	 * 7919 is a prime, so no page is left out where that does not divide the number of pages.
	 */
	return order == FORWARDS ? i : order == BACKWARDS ? pages - 1 - i : (i * 7919 + 3) % pages;
}

static xpmem_segid_t several[10];
static unsigned int segments;

/*
 * All peers store the same, so each finds it, whichever peer was first. Through each of several
 * segments that show the same.
 */
static int store_all(xpmem_segid_t unused)
{
	unsigned int s;
	size_t i, at;

	(void)unused;
	for (s = 0; s < segments; s++) {
		struct xpmem_addr addr = {
			.apid = xpmem_get(several[s], XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
			.offset = (off_t)(uintptr_t)exported,
		};
		volatile uint64_t *view = xpmem_attach(addr, length, NULL);

		CHECK(view != FAIL);
		for (i = 0; i < length / page; i++) {
			at = nth(i) * (page / 8);
			view[at] = 3 * at + s;
			view[at + page / 16] = 5 * at;
		}
		CHECK(!xpmem_detach((void *)view) && !xpmem_release(addr.apid));
	}
	return 1;
}

/* Attached, and not touched. */
static int only_attach(xpmem_segid_t segid)
{
	struct xpmem_addr addr = {
		.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
		.offset = (off_t)(uintptr_t)exported,
	};
	void *view = xpmem_attach(addr, length, NULL);

	CHECK(view != FAIL);
	CHECK(!xpmem_detach(view) && !xpmem_release(addr.apid));
	return 1;
}

/*
 * What the owner never touched is zeroes; what it filled is there, also where only some pages are
 * looked at.
 */
static uint64_t filled;

static int load_some(xpmem_segid_t segid)
{
	struct xpmem_addr addr = {
		.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL),
		.offset = (off_t)(uintptr_t)exported,
	};
	volatile uint64_t *view = xpmem_attach(addr, length, NULL);
	size_t at;

	CHECK(view != FAIL);
	for (at = 0; at < length / 8; at += (length > 400 * page ? 200 : 1) * page / 8)
		CHECK(view[at] == filled * (at + 1));
	CHECK(!xpmem_detach((void *)view) && !xpmem_release(addr.apid));
	return 1;
}

static int peers_at_once(void)
{
	static const unsigned int peers[] = { 1, MOST_PEERS }, pages[] = { 1, 3, 100, 400, 4000 };
	size_t i, j, at;
	unsigned int s;

	for (s = 0; s < 10; s++) {
		several[s] = xpmem_make(NULL, XPMEM_MAXADDR_SIZE, XPMEM_PERMIT_MODE, (void *)0600);
		CHECK(several[s] != -1);
	}
	for (i = 0; i < 2; i++) {
		for (j = 0; j < 5; j++) {
			length = pages[j] * page;
			exported = mmap(NULL, length, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			CHECK(exported != MAP_FAILED);
			CHECK(in_peers(peers[i], only_attach, several[0]));
			filled = 0;
			CHECK(in_peers(peers[i], load_some, several[0]));
			filled = 9;
			for (at = 0; at < length / 8; at += page / 8)
				((volatile uint64_t *)exported)[at] = filled * (at + 1);
			CHECK(in_peers(peers[i], load_some, several[0]));
			for (order = FORWARDS; pages[j] <= 400 && order <= ANYHOW; order++) {
				segments = order == FORWARDS && pages[j] <= 100 ? 10 : 1;
				CHECK(in_peers(peers[i], store_all, 0));
				for (at = 0; at < length / 8; at += page / 8) {
					CHECK(((volatile uint64_t *)exported)[at] ==
					      3 * at + segments - 1);
					CHECK(((volatile uint64_t *)exported)[at + page / 16] ==
					      5 * at);
				}
			}
			CHECK(!munmap(exported, length));
		}
	}
	for (s = 0; s < 10; s++)
		CHECK(!xpmem_remove(several[s]));
	return 1;
}

/* What others pass, and what they expect of it. */
static int calls_of_others(void)
{
	xpmem_segid_t segid = xpmem_make(NULL, 1 << 16, XPMEM_PERMIT_MODE, (void *)0600);
	xpmem_apid_t apid;

	CHECK(segid != -1);
	/* A value is not looked at here. */
	apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, (void *)0600);
	CHECK(apid != -1);
	CHECK(xpmem_get(segid, 9999, XPMEM_PERMIT_MODE, NULL) == -1);
	CHECK(xpmem_get(-1, XPMEM_RDWR, XPMEM_PERMIT_MODE, (void *)0600) == -1);
	CHECK(!xpmem_release(apid));
	CHECK(!xpmem_remove(segid));
	CHECK(xpmem_remove(segid) == -1 && xpmem_remove(-1) == -1 && xpmem_remove(12345) == -1);
	CHECK(xpmem_make((void *)-2, 1 << 16, XPMEM_PERMIT_MODE, (void *)0600) == -1);
	CHECK(xpmem_make((void *)12, 1 << 16, XPMEM_PERMIT_MODE, (void *)0600) == -1);
	return 1;
}

/* Whether each mode lets read and write; root may all. */
static int gets(int root)
{
	static const struct {
		uintptr_t mode;
		int read;
		int write;
	} modes[] = { { 0600, 1, 1 }, { 0400, 1, 0 }, { 0200, 0, 0 }, { 0000, 0, 0 } };
	xpmem_segid_t segid;
	size_t i;

	for (i = 0; i < 4; i++) {
		segid = xpmem_make(NULL, 10 * page, XPMEM_PERMIT_MODE, (void *)modes[i].mode);
		CHECK(segid != -1);
		CHECK((xpmem_get(segid, XPMEM_RDONLY, XPMEM_PERMIT_MODE, NULL) != -1) ==
		      (root || modes[i].read));
		CHECK((xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL) != -1) ==
		      (root || modes[i].write));
		CHECK(!xpmem_remove(segid));
	}
	return 1;
}

static int ordinary_user(xpmem_segid_t unused)
{
	(void)unused;
	/* Opened while it may. */
	CHECK(xpmem_version() > 0);
	CHECK(!setgid(1001) && !setuid(1001));
	return gets(0);
}

static int modes(void)
{
	CHECK(!geteuid());
	CHECK(gets(1));
	return in_child(ordinary_user, 0);
}

/* Stores to a page of an attachment end the process by the signal for memory that is not there. */
static int dies_at(volatile uint64_t *(*attaches)(void))
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		volatile uint64_t *view = attaches();

		if (!view)
			_exit(1);
		*view = 1;
		_exit(2);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	return 1;
}

/*
 * Memory of the process itself, in a segment that begins before it and ends behind it: from the
 * page before it on.
 */
static char *middle;

static volatile uint64_t *attach_own(void)
{
	struct xpmem_addr addr = { .offset = 2 * page };
	xpmem_segid_t segid;
	void *view;

	middle = mmap(NULL, 15 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (middle == MAP_FAILED || munmap(middle, 3 * page) ||
	    munmap(middle + 13 * page, 2 * page))
		return NULL;
	middle += 3 * page;
	segid = xpmem_make(middle - 3 * page, 15 * page, XPMEM_PERMIT_MODE, (void *)0600);
	addr.apid = xpmem_get(segid, XPMEM_RDWR, XPMEM_PERMIT_MODE, NULL);
	view = xpmem_attach(addr, 12 * page, NULL);
	return segid == -1 || view == FAIL ? NULL : view;
}

static volatile uint64_t *after_unmapping(void)
{
	volatile uint64_t *view = attach_own();

	if (!view || (view[page / 8] = 1) != 1 || munmap(middle, 10 * page))
		return NULL;
	return view + 6 * page / 8;
}

static int own_memory(xpmem_segid_t unused)
{
	volatile uint64_t *view = attach_own();
	size_t i;

	(void)unused;
	CHECK(view);
	view += page / 8;
	for (i = 0; i < 10 * page / 8; i += 64) {
		view[i] = i + 1;
		CHECK(((volatile uint64_t *)middle)[i] == i + 1);
		((volatile uint64_t *)middle)[i] = ~i;
		CHECK(view[i] == ~i);
	}
	return 1;
}

static int around_a_mapping(void)
{
	struct rlimit none = { 0 };

	CHECK(!setrlimit(RLIMIT_CORE, &none));
	CHECK(in_child(own_memory, 0));
	/* The page before the mapping, and one of it that has gone. */
	CHECK(dies_at(attach_own));
	CHECK(dies_at(after_unmapping));
	return 1;
}

/* The first call of the process is that of a thread that is to end: it opens the device. */
static void *cancelled_at_once(void *unused)
{
	pthread_cancel(pthread_self());
	xpmem_make(middle, page, XPMEM_PERMIT_MODE, (void *)0600);
	pthread_testcancel();
	return unused;
}

static int calls_after_a_cancelled_one(xpmem_segid_t unused)
{
	xpmem_segid_t segid;
	pthread_t thread;
	void *result;
	pid_t pid;

	(void)unused;
	alarm(60); /* what hangs dies */
	middle = (char *)memory(1);
	CHECK(!pthread_create(&thread, NULL, cancelled_at_once, NULL));
	CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);
	segid = xpmem_make(middle, page, XPMEM_PERMIT_MODE, (void *)0600);
	CHECK(segid != -1);
	pid = fork();
	if (!pid)
		_exit(0);
	CHECK(pid > 0 && waitpid(pid, NULL, 0) == pid);
	return 1;
}

static int cancelled_while_it_opens(void)
{
	return in_child(calls_after_a_cancelled_one, 0);
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	size = PAGES * page;
	run("version", version);
	run("make_get_attach", make_get_attach);
	run("commands_of_the_device", commands_of_the_device);
	run("whole_address_space", whole_address_space);
	run("for_reading", for_reading);
	run("child_begins_anew", child_begins_anew);
	run("errors", errors);
	run("threads_at_once", threads_at_once);
	run("closed_by_the_program", closed_by_the_program);
	run("number_of_another_file", number_of_another_file);
	run("found_closed_at_once", found_closed_at_once);
	run("cancelled_while_it_opens", cancelled_while_it_opens);
	run("two_attachments", two_attachments);
	run("two_segments", two_segments);
	run("store_after_fork", store_after_fork);
	run("many_peers", many_peers);
	run("holes", holes);
	run("peers_at_once", peers_at_once);
	run("calls_of_others", calls_of_others);
	run("modes", modes);
	run("around_a_mapping", around_a_mapping);
	printf("libxpmem: %d failed\n", failed);
	return failed != 0;
}
