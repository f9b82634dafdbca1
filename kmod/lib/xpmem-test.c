// SPDX-License-Identifier: MIT OR Apache-2.0
/* Uses libxpmem as its documentation says, and nothing else. One line per test; exit status 0 if all are well. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "xpmem.h"

#define PAGES 16
#define FAIL ((void *)-1)

static size_t page;
static size_t size;
static int failed;

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("  %s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			return 0; \
		} \
	} while (0)

static uint64_t *memory(uint64_t seed)
{
	uint64_t *words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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

	CHECK(xpmem_make((char *)words + 1, size, XPMEM_PERMIT_MODE, (void *)0600) == -1 && errno == EINVAL);
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
	return xpmem_detach((void *)view) || xpmem_release(addr.apid) || xpmem_remove(segid) ? FAIL : NULL;
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

static void run(const char *name, int (*test)(void))
{
	int ok = test();

	printf("%s %s\n", ok ? "ok" : "FAIL", name);
	failed += !ok;
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	size = PAGES * page;
	run("version", version);
	run("make_get_attach", make_get_attach);
	run("whole_address_space", whole_address_space);
	run("for_reading", for_reading);
	run("child_begins_anew", child_begins_anew);
	run("errors", errors);
	run("threads_at_once", threads_at_once);
	run("closed_by_the_program", closed_by_the_program);
	printf("libxpmem: %d failed\n", failed);
	return failed != 0;
}
