// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The CUDA driver interface in software, for tests on machines without a device.
 *
 * Memory of a device cannot be touched at its address. That address is reserved without any access, and the bytes are
 * in a memfd that is mapped elsewhere. A load ends the program, and process_vm_readv fails, as on a device. A stream is
 * a queue whose thread does its work in order. A kernel occupies the whole device, and copies within that device wait
 * for it, as they may need its processors. The default stream waits for all streams that are not non-blocking, and
 * these for it. A call that waits on a real driver waits here too, for ever if the kernel that it waits for never ends.
 * So does one that may wait there, as giving pinned memory out or back.
 *
 * Memory of a device is shown to other processes by a handle that names its memfd. Opening and closing a mapping wait
 * for kernels, as a driver may do, and so does an allocation. Opening is strict: never in the own process, by one
 * context of a device alone, once for each handle, which is counted. Closing is an error while work names the mapping.
 *
 * Physical memory and pools are shown by descriptors of a memfd each, whose name says what it is and of which device. A
 * descriptor that is given out survives an exec unless its owner says otherwise. A handle of physical memory lives as
 * long as it is held or mapped; the next one made has the same value. So it is with a pool's. A mapping begins without
 * access. The memfd of a pool says which allocations are there, and how often other processes have each imported. To free
 * one that is, or to unmap what work names, is a misuse. So it is to name a stream or an event of a context that has
 * ended: another one may be at its place, or nothing. With MODEL_CUDA_IDS=kept, mappings at one reservation have one
 * number. With MODEL_CUDA_RANGES=reserved the range of an address is its reservation.
 *
 * Names and numbers are those of the interface. Environment: MODEL_CUDA_DEVICES says how many devices there are,
 * MODEL_CUDA_APART that none reaches another one's memory. MODEL_CUDA_IPC=refused gives out no handle,
 * MODEL_CUDA_IPC=closed opens none. MODEL_CUDA_MAPPINGS says how many may be open. With MODEL_CUDA_OLD, contexts have
 * no number, as before CUDA 12.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	MAP_FAILED_ERROR = 205,
	ALREADY_MAPPED = 208,
	PEER_ACCESS_UNSUPPORTED = 217,
	OPERATING_SYSTEM = 304,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	NOT_READY = 600,
	ILLEGAL_ADDRESS = 700,
	CONTEXT_IS_DESTROYED = 709,
	CAPTURE_UNSUPPORTED = 900,
	NOT_SUPPORTED = 801,
};

#define DEVICES 8
#define ARENA (1ull << 38)
#define STEP (64ull << 10)
#define ALIGNED (2ull << 20)
#define SHORT 4096

enum kind { DEVICE, MANAGED, PINNED, RESERVED, POOLED, MAPPED };

struct allocation {
	struct allocation *next;
	enum kind kind;
	uint64_t base;
	size_t size;
	char *alias;
	int fd;
	unsigned long long id;
	struct context *context;
	int device;
	bool opened;
	/* What was opened, and how often. */
	CUipcMemHandle handle;
	int openings;
	/* What is mapped, and at the reservation that begins there. */
	struct physical *physical;
	uint64_t reservation;
	/* Devices that may use it, as bits. */
	unsigned int access;
	struct pool *pool;
	int slot;
};

struct physical {
	struct physical *next;
	int fd;
	size_t size;
	int device;
	bool is_shown, imported;
	/* Who holds the handle, and mappings. */
	int holders, mappings;
};

/* Allocations of a pool that other processes may import, at the begin of its memory. */
struct slot {
	uint64_t number, offset, bytes;
	int64_t importers;
	/* The last one that has imported it. */
	int64_t importer;
};

enum { SLOTS = 1024, TABLE = 64 << 10 };

struct pool {
	struct pool *next;
	int fd, device, allocations;
	bool is_shown, imported, destroyed;
	unsigned int access;
	struct slot *slots;
};

/* What an exported pointer holds. */
struct pointer {
	uint64_t magic, number;
	int64_t slot;
};

#define MAGIC 0x6c6f6f70ull

struct context {
	int device;
	unsigned long long id;
	int references;
	bool alive, was_reset;
	CUresult error;
	struct stream *legacy;
	struct stream *streams;
};

enum work { COPY, SET_EVENT, WAIT_EVENT, SPIN, FREE };

struct op {
	struct op *next;
	enum work work;
	uint64_t to, from;
	size_t bytes;
	struct event *event;
	unsigned long turn;
	uint32_t value;
	unsigned long sequence;
	/* A kernel that occupies its device already, though its thread has not looked. */
	bool begun;
};

struct stream {
	struct stream *next;
	struct context *context;
	bool non_blocking, gone, running;
	struct op *head, **tail;
	pthread_t thread;
};

struct event {
	unsigned long recorded, done;
	struct context *context;
	unsigned long long context_id;
	bool gone;
};

struct function {
	int unused;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct allocation *allocations;
static struct context primary[DEVICES];
static int devices;
static bool initialized, occupied[DEVICES];
static int held[DEVICES];
static uint64_t arena;
static unsigned long long next_id = 1;
static unsigned long sequence, blocking_calls, objects, queries, copies, between, openings, showings, misuses;
static bool stalled;
static unsigned long kept;
static enum model_fault fault;
static int fault_after;
static struct function spin;
static struct context *ended;
static struct physical *released;
static struct pool *ended_pools, first_pools[DEVICES];
/* What streams of an ended context belong to. */
static struct context nowhere;

static __thread struct context *stack[32];
static __thread int depth;
static __thread unsigned long entries;
static __thread struct stream *own_stream;
static __thread int capture_mode;
static bool capturing, capture_broken;

static struct context *current(void)
{
	return depth > 0 ? stack[depth - 1] : NULL;
}

static CUresult check(struct context *context)
{
	if (!initialized)
		return NOT_INITIALIZED;
	if (!context)
		return INVALID_CONTEXT;
	if (!context->alive)
		return CONTEXT_IS_DESTROYED;
	if (capturing && capture_mode == 0) {
		capture_broken = true;
		return CAPTURE_UNSUPPORTED;
	}
	return context->error;
}

#define NEED_CONTEXT()                                                                                                 \
	do {                                                                                                           \
		CUresult bad = check(current());                                                                       \
		if (bad) {                                                                                             \
			pthread_mutex_unlock(&lock);                                                                   \
			return bad;                                                                                    \
		}                                                                                                      \
	} while (0)

/* Whether the fault that a test asked for happens now. */
static bool fails(enum model_fault now)
{
	return fault == now && fault_after-- <= 0;
}

void cuModelFault(enum model_fault what, int after)
{
	pthread_mutex_lock(&lock);
	fault = what;
	fault_after = after;
	pthread_mutex_unlock(&lock);
}

unsigned long cuModelBlockingCalls(void)
{
	pthread_mutex_lock(&lock);
	unsigned long calls = blocking_calls;
	pthread_mutex_unlock(&lock);
	return calls;
}

unsigned long cuModelObjects(void)
{
	pthread_mutex_lock(&lock);
	unsigned long there = objects;
	pthread_mutex_unlock(&lock);
	return there;
}

unsigned long cuModelRegistered(void)
{
	pthread_mutex_lock(&lock);
	unsigned long bytes = 0;
	for (struct allocation *a = allocations; a; a = a->next)
		bytes += a->kind == PINNED && a->opened ? a->size : 0;
	pthread_mutex_unlock(&lock);
	return bytes;
}

unsigned long cuModelQueries(void)
{
	pthread_mutex_lock(&lock);
	unsigned long asked = queries;
	pthread_mutex_unlock(&lock);
	return asked;
}

unsigned long cuModelCopies(void)
{
	pthread_mutex_lock(&lock);
	unsigned long begun = copies;
	pthread_mutex_unlock(&lock);
	return begun;
}

unsigned long cuModelBetween(void)
{
	pthread_mutex_lock(&lock);
	unsigned long begun = between;
	pthread_mutex_unlock(&lock);
	return begun;
}

unsigned long cuModelMappings(void)
{
	pthread_mutex_lock(&lock);
	unsigned long there = 0;
	for (struct allocation *a = allocations; a; a = a->next)
		there += (a->kind == DEVICE || a->kind == POOLED || a->kind == MAPPED) && a->opened;
	pthread_mutex_unlock(&lock);
	return there;
}

unsigned long cuModelOpenings(void)
{
	pthread_mutex_lock(&lock);
	unsigned long so_far = openings;
	pthread_mutex_unlock(&lock);
	return so_far;
}

unsigned long cuModelShowings(void)
{
	pthread_mutex_lock(&lock);
	unsigned long so_far = showings;
	pthread_mutex_unlock(&lock);
	return so_far;
}

unsigned long cuModelMisuses(void)
{
	pthread_mutex_lock(&lock);
	unsigned long so_far = misuses;
	pthread_mutex_unlock(&lock);
	return so_far;
}

unsigned long cuModelEntries(void)
{
	return entries;
}

void cuModelStall(int on)
{
	pthread_mutex_lock(&lock);
	stalled = on;
	kept = 0;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

unsigned long cuModelStalled(void)
{
	pthread_mutex_lock(&lock);
	unsigned long threads = kept;
	pthread_mutex_unlock(&lock);
	return threads;
}

void cuModelHold(int device, int on)
{
	pthread_mutex_lock(&lock);
	held[device] = on;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void cuModelCapture(int on)
{
	capturing = on;
	capture_broken = false;
}

int cuModelCaptureIsBroken(void)
{
	return capture_broken;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = capture_mode;
	capture_mode = *mode;
	*mode = before;
	return SUCCESS;
}

/* Addresses. */

static struct allocation *find(uint64_t address)
{
	for (struct allocation *a = allocations; a; a = a->next)
		if (address >= a->base && address - a->base < a->size)
			return a;
	return NULL;
}

/* The lowest free place: what is freed is soon used again. */
static uint64_t place(size_t size)
{
	uint64_t base = arena;
again:
	for (struct allocation *a = allocations; a; a = a->next) {
		uint64_t end = (a->base + a->size + STEP - 1) / STEP * STEP;
		if (a->base >= arena && a->base < arena + ARENA && base < end && base + size > a->base) {
			base = end;
			goto again;
		}
	}
	return base + size <= arena + ARENA ? base : 0;
}

static struct allocation *keep(enum kind kind, uint64_t base, size_t size, int fd)
{
	struct allocation *a = calloc(1, sizeof(*a));
	a->kind = kind;
	a->base = base;
	a->size = size;
	a->fd = fd;
	a->id = next_id++;
	a->context = current();
	a->device = a->context ? a->context->device : 0;
	a->access = ~0u;
	a->slot = -1;
	a->next = allocations;
	allocations = a;
	objects++;
	return a;
}

/* A memfd whose name says what it is: other processes have its descriptor alone. */
static int make_file(const char *what, int device, size_t bytes)
{
	char name[32];
	snprintf(name, sizeof(name), "%s-%d", what, device);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, bytes)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* The device of such a file, or -1. */
static int device_of(int fd, const char *what)
{
	char path[64], name[128], end;
	int device;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t length = readlink(path, name, sizeof(name) - 1);
	if (length < 0)
		return -1;
	name[length] = 0;
	char pattern[64];
	snprintf(pattern, sizeof(pattern), "/memfd:%s-%%d%%c", what);
	return sscanf(name, pattern, &device, &end) == 2 && device >= 0 && device < devices ? device : -1;
}

static bool is_alive(int64_t pid)
{
	char path[64], state = 'X';
	snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	int read = fscanf(file, "%*d (%*[^)]) %c", &state);
	fclose(file);
	return read == 1 && state != 'Z' && state != 'X';
}

/* Nobody holds it, and it is mapped nowhere: the next one made has its handle. */
static void end_physical(struct physical *physical)
{
	if (physical->holders || physical->mappings)
		return;
	close(physical->fd);
	physical->fd = -1;
	physical->next = released;
	released = physical;
}

static void end_pool(struct pool *pool)
{
	if (!pool->destroyed || pool->allocations)
		return;
	munmap(pool->slots, TABLE);
	close(pool->fd);
	pool->fd = -1;
	pool->next = ended_pools;
	ended_pools = pool;
}

static char *map_alias(int fd, size_t size)
{
	char *alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return alias == MAP_FAILED ? NULL : alias;
}

/* Memory of a device. */
static CUresult make(enum kind kind, CUdeviceptr *address, size_t bytes)
{
	if (!bytes)
		return INVALID_VALUE;
	if (fails(MODEL_OUT_OF_MEMORY))
		return OUT_OF_MEMORY;
	uint64_t base = place(bytes);
	int fd = memfd_create("device", MFD_CLOEXEC);
	if (!base || fd < 0 || ftruncate(fd, bytes))
		return OUT_OF_MEMORY;
	struct allocation *a = keep(kind, base, bytes, fd);
	a->alias = map_alias(fd, bytes);
	if (kind == MANAGED) {
		/* The processor may touch it. */
		mmap((void *)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	}
	*address = base;
	return SUCCESS;
}

static void forget(struct allocation *gone)
{
	for (struct allocation **at = &allocations; *at; at = &(*at)->next) {
		if (*at != gone)
			continue;
		*at = gone->next;
		break;
	}
	if (gone->alias)
		munmap(gone->alias, gone->size);
	if (gone->kind == MANAGED)
		mmap((void *)gone->base, gone->size, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	if (gone->kind == PINNED && !gone->opened)
		munmap((void *)gone->base, gone->size);
	if (gone->fd >= 0)
		close(gone->fd);
	if (gone->physical) {
		gone->physical->mappings--;
		end_physical(gone->physical);
	}
	if (gone->pool) {
		struct slot *slot = gone->slot < 0 ? NULL : &gone->pool->slots[gone->slot];
		if (slot && gone->opened) {
			__atomic_fetch_sub(&slot->importers, 1, __ATOMIC_SEQ_CST);
		} else if (slot) {
			bool imported = __atomic_load_n(&slot->importers, __ATOMIC_SEQ_CST) != 0;
			misuses += imported && is_alive(slot->importer);
			memset(slot, 0, sizeof(*slot));
		}
		gone->pool->allocations--;
		end_pool(gone->pool);
	}
	free(gone);
	objects--;
}

/* Where the processor finds bytes; NULL: nowhere. */
static char *bytes_at(uint64_t address, size_t bytes)
{
	struct allocation *a = find(address);
	if (!a)
		return address >= arena && address < arena + ARENA ? NULL : (char *)address;
	if (a->kind == RESERVED || bytes > a->base + a->size - address)
		return NULL;
	return a->alias ? a->alias + (address - a->base) : (char *)address;
}

/* Streams. */

static bool earlier(struct stream *stream, unsigned long than)
{
	return stream->head && stream->head->sequence < than;
}

/* Whether a copy is from a device's memory to the same one's. */
static bool is_within(struct op *op, int device)
{
	struct allocation *to = find(op->to), *from = find(op->from);
	return to && from && to->kind != PINNED && from->kind != PINNED && to->device == device &&
	       from->device == device;
}

/* Whether the first work of a stream may be done. */
static bool may_run(struct stream *stream)
{
	struct op *op = stream->head;
	if (!op)
		return false;
	struct context *context = stream->context;
	if (stream == context->legacy) {
		for (struct stream *other = context->streams; other; other = other->next)
			if (!other->non_blocking && earlier(other, op->sequence))
				return false;
	} else if (!stream->non_blocking && context->legacy && earlier(context->legacy, op->sequence)) {
		return false;
	}
	if (op->work == WAIT_EVENT)
		return op->event->done >= op->turn;
	if (op->work == COPY && held[context->device] && (held[context->device] == 1 || op->bytes > SHORT))
		return false;
	/* Between addresses of one device its processors copy. */
	if (op->work == COPY && occupied[context->device] && is_within(op, context->device))
		return false;
	return op->work != SPIN || op->begun || !occupied[context->device];
}

static bool is_forbidden(struct context *context, uint64_t address)
{
	struct allocation *a = find(address);
	unsigned int access = a && a->pool ? a->pool->access : a ? a->access : ~0u;
	return !(access & 1u << context->device);
}

static void copy(struct context *context, struct op *op)
{
	char *to = bytes_at(op->to, op->bytes), *from = bytes_at(op->from, op->bytes);
	if (fails(MODEL_LOST_CONTEXT)) {
		context->alive = false;
		return;
	}
	bool forbidden = is_forbidden(context, op->to) || is_forbidden(context, op->from);
	if (!to || !from || forbidden || fails(MODEL_ILLEGAL_ADDRESS)) {
		context->error = ILLEGAL_ADDRESS;
		return;
	}
	pthread_mutex_unlock(&lock);
	memmove(to, from, op->bytes);
	pthread_mutex_lock(&lock);
}

static void run_kernel(struct context *context, struct op *op)
{
	occupied[context->device] = true;
	volatile uint32_t *word = (volatile uint32_t *)bytes_at(op->to, sizeof(*word));
	if (!word)
		context->error = ILLEGAL_ADDRESS;
	while (word && context->alive && *word != op->value) {
		pthread_mutex_unlock(&lock);
		usleep(50);
		pthread_mutex_lock(&lock);
	}
	occupied[context->device] = false;
	pthread_cond_broadcast(&changed);
}

static void *work(void *argument)
{
	struct stream *stream = argument;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!(stream->gone && !stream->head) &&
		       !(may_run(stream) || (stream->head && !stream->context->alive)))
			pthread_cond_wait(&changed, &lock);
		struct context *context = stream->context;
		struct op *op = stream->head;
		if (!op)
			break;
		stream->running = true;
		bool good = context->alive && !context->error;
		if (op->work == COPY) {
			/* A caller sees that it is not over at once; of many, some are enough. */
			if (op->sequence % 16 < 2) {
				pthread_mutex_unlock(&lock);
				usleep(20);
				pthread_mutex_lock(&lock);
			}
			if (good)
				copy(context, op);
		} else if (op->work == SPIN && good) {
			run_kernel(context, op);
		} else if (op->work == SPIN && op->begun) {
			occupied[context->device] = false;
		} else if (op->work == SET_EVENT) {
			if (op->event->done < op->turn)
				op->event->done = op->turn;
		} else if (op->work == FREE) {
			struct allocation *a = find(op->to);
			if (a)
				forget(a);
		}
		stream->running = false;
		stream->head = op->next;
		if (!stream->head)
			stream->tail = &stream->head;
		free(op);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static struct stream *start(struct context *context, bool non_blocking)
{
	struct stream *stream = calloc(1, sizeof(*stream));
	stream->context = context;
	stream->non_blocking = non_blocking;
	stream->tail = &stream->head;
	/* Its thread waits for the lock. */
	if (pthread_create(&stream->thread, NULL, work, stream)) {
		free(stream);
		return NULL;
	}
	pthread_detach(stream->thread);
	stream->next = context->streams;
	context->streams = stream;
	return stream;
}

/* The stream that a handle names. */
static struct stream *named(CUstream handle)
{
	struct context *context = current();
	if (handle == NULL || handle == (CUstream)1) {
		blocking_calls++;
		if (!context->legacy) {
			struct stream *legacy = start(context, false);
			/* It is no stream of the list: it waits for those. */
			context->streams = legacy->next;
			context->legacy = legacy;
		}
		return context->legacy;
	}
	if (handle == CU_STREAM_PER_THREAD) {
		if (!own_stream || own_stream->context != context)
			own_stream = start(context, false);
		return own_stream;
	}
	return handle;
}

/* The same; NULL: its context has ended, or it was given back. */
static struct stream *living(CUstream handle)
{
	struct stream *found = named(handle);
	misuses += found->gone;
	return found->gone ? NULL : found;
}

static struct op *add(struct stream *stream, enum work what)
{
	struct op *op = calloc(1, sizeof(*op));
	op->work = what;
	op->sequence = ++sequence;
	*stream->tail = op;
	stream->tail = &op->next;
	pthread_cond_broadcast(&changed);
	return op;
}

static bool is_idle(struct context *context)
{
	if (context->legacy && context->legacy->head)
		return false;
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		if (stream->head)
			return false;
	return true;
}

/* Waits until the whole context has nothing to do. */
static CUresult wait_for_context(struct context *context)
{
	blocking_calls++;
	while (context->alive && !is_idle(context))
		pthread_cond_wait(&changed, &lock);
	return check(context);
}

/* Waits until no kernel occupies the device. */
static CUresult wait_for_kernels(struct context *context)
{
	while (context->alive && occupied[context->device]) {
		pthread_cond_wait(&changed, &lock);
	}
	return check(context);
}

static CUresult wait_for_stream(struct stream *stream)
{
	blocking_calls++;
	while (stream->context->alive && stream->head)
		pthread_cond_wait(&changed, &lock);
	return check(stream->context);
}

/* Whether work of any stream names an allocation. */
static bool is_named(struct allocation *a)
{
	for (int i = 0; i < devices; i++) {
		for (struct stream *stream = primary[i].streams; stream; stream = stream->next) {
			for (struct op *op = stream->head; op; op = op->next) {
				if (op->work == COPY && (op->from - a->base < a->size || op->to - a->base < a->size))
					return true;
			}
		}
	}
	return false;
}

static bool ipc_is(const char *word)
{
	const char *said = getenv("MODEL_CUDA_IPC");
	return said && !strcmp(said, word);
}

/* Beginning, devices. */

CUresult cuInit(unsigned int flags)
{
	if (flags)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (!initialized) {
		const char *said = getenv("MODEL_CUDA_DEVICES");
		devices = said ? atoi(said) : 1;
		if (devices < 0 || devices > DEVICES)
			devices = DEVICES;
		void *reserved =
			mmap(NULL, ARENA + ALIGNED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		/* As on a device, no memory of the host is within the same 2 MiB. */
		arena = reserved == MAP_FAILED ? 0 : ((uint64_t)reserved + ALIGNED - 1) / ALIGNED * ALIGNED;
		for (int i = 0; i < devices; i++) {
			primary[i].device = i;
			first_pools[i].device = i;
			first_pools[i].access = ~0u;
		}
		initialized = arena && devices > 0;
	}
	CUresult result = initialized ? SUCCESS : NO_DEVICE;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 12040;
	return SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	static const struct {
		CUresult error;
		const char *name;
	} names[] = {
		{ SUCCESS, "CUDA_SUCCESS" },
		{ INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
		{ OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
		{ NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED" },
		{ NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
		{ INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE" },
		{ INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
		{ MAP_FAILED_ERROR, "CUDA_ERROR_MAP_FAILED" },
		{ NOT_READY, "CUDA_ERROR_NOT_READY" },
		{ ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS" },
		{ CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED" },
		{ NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED" },
		{ PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" },
		{ ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED" },
		{ OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM" },
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i].error == error) {
			*name = names[i].name;
			return SUCCESS;
		}
	}
	*name = NULL;
	return INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	return cuGetErrorName(error, text);
}

CUresult cuDeviceGetCount(int *count)
{
	*count = devices;
	return initialized ? SUCCESS : NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	if (!initialized)
		return NOT_INITIALIZED;
	if (ordinal < 0 || ordinal >= devices)
		return INVALID_DEVICE;
	*device = ordinal;
	return SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	snprintf(name, length, "software device %d", device);
	return device < devices ? SUCCESS : INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	/* Unified addressing, managed memory, copy engines, virtual memory, pools; compute capability 9.0. */
	*value = attribute == 41 || attribute == 83 || attribute == 102 || attribute == 115;
	/* Both by file descriptors. */
	*value |= attribute == 103 || attribute == 119;
	if (attribute == 40)
		*value = 2;
	if (attribute == 75)
		*value = 9;
	return device < devices ? SUCCESS : INVALID_DEVICE;
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
	snprintf(id, length, "0000:%02x:00.0", device + 1);
	return SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	(void)device;
	*bytes = 1ul << 34;
	return SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	*can = device != peer && !getenv("MODEL_CUDA_APART");
	return SUCCESS;
}

/* The same number in all processes of a machine. */
CUresult cuDeviceGetUuid_v2(char *uuid, CUdevice device)
{
	memcpy(uuid, "software device", 15);
	uuid[15] = (char)('0' + device);
	return device < devices ? SUCCESS : INVALID_DEVICE;
}

/* Contexts. */

/* Work of a stream whose context ends is over. */
static void end_stream(struct stream *stream)
{
	int device = stream->context->device;
	stream->context = &nowhere;
	stream->gone = true;
	/* What is being done is its thread's to end. */
	struct op **rest = stream->running ? &stream->head->next : &stream->head;
	while (*rest) {
		struct op *op = *rest;
		*rest = op->next;
		if (op->begun)
			occupied[device] = false;
		free(op);
	}
	stream->tail = rest;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	*id = context->id;
	return getenv("MODEL_CUDA_OLD") ? NOT_SUPPORTED : context->error;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	if (!initialized)
		return NOT_INITIALIZED;
	if (device < 0 || device >= devices)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	struct context *shared = &primary[device];
	shared->references++;
	if (shared->was_reset || (!shared->alive && shared->references == 1)) {
		shared->alive = true;
		shared->was_reset = false;
		shared->id = ++next_id;
	}
	*context = shared;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	pthread_mutex_lock(&lock);
	primary[device].references--;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = primary[device].references > 0;
	return SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	/* The handle of the last one that ended, whose streams are not its own any more. */
	struct context *made = ended ? ended : calloc(1, sizeof(*made));
	ended = NULL;
	memset(made, 0, sizeof(*made));
	made->device = device;
	made->id = ++next_id;
	made->alive = true;
	stack[depth++] = *context = made;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

/* All that a context has is gone. */
static void end_context(struct context *context)
{
	context->alive = false;
	for (struct allocation *a = allocations, *next; a; a = next) {
		next = a->next;
		if (a->context == context)
			forget(a);
	}
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		end_stream(stream);
	if (context->legacy)
		end_stream(context->legacy);
}

/* It has the same handle when it is retained again, and is another one. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	if (device < 0 || device >= devices)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	struct context *shared = &primary[device];
	end_context(shared);
	shared->streams = shared->legacy = NULL;
	shared->error = SUCCESS;
	shared->was_reset = true;
	shared->id = ++next_id;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	pthread_mutex_lock(&lock);
	end_context(context);
	if (current() == context)
		depth--;
	ended = context;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = current();
	return initialized ? SUCCESS : NOT_INITIALIZED;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
	return SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	entries++;
	if (depth == 32)
		return INVALID_VALUE;
	if (!context || !context->alive)
		return CONTEXT_IS_DESTROYED;
	stack[depth++] = context;
	return SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	if (!depth)
		return INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	if (!current())
		return INVALID_CONTEXT;
	*device = current()->device;
	return SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	(void)peer;
	(void)flags;
	return SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	CUresult result = wait_for_context(current());
	pthread_mutex_unlock(&lock);
	return result;
}

/* Memory. */

static CUresult make_locked(enum kind kind, CUdeviceptr *address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	CUresult result = make(kind, address, bytes);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	CUresult result = wait_for_kernels(current());
	if (!result)
		result = make(DEVICE, address, bytes);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	(void)flags;
	return make_locked(MANAGED, address, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct allocation *a = find(address);
	if (!a || a->base != address) {
		pthread_mutex_unlock(&lock);
		return INVALID_VALUE;
	}
	CUresult result = wait_for_context(current());
	forget(a);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	/* It may wait for the device. */
	wait_for_context(current());
	void *made = MAP_FAILED;
	if (!fails(MODEL_OUT_OF_MEMORY))
		made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made != MAP_FAILED) {
		keep(PINNED, (uint64_t)made, bytes, -1);
		*memory = made;
	}
	pthread_mutex_unlock(&lock);
	return made == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

CUresult cuMemAllocHost_v2(void **memory, size_t bytes)
{
	return cuMemHostAlloc(memory, bytes, 0);
}

CUresult cuMemFreeHost(void *memory)
{
	return cuMemFree_v2((uint64_t)memory);
}

CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	bool refused = fails(MODEL_NO_REGISTRATION);
	/* As pinned memory, but not the driver's to unmap. */
	if (!refused)
		keep(PINNED, (uint64_t)memory, bytes, -1)->opened = true;
	pthread_mutex_unlock(&lock);
	return refused ? OUT_OF_MEMORY : SUCCESS;
}

CUresult cuMemHostUnregister(void *memory)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct allocation *a = find((uint64_t)memory);
	CUresult result = a ? wait_for_context(current()) : INVALID_VALUE;
	/* The program that registered it unmaps it. */
	if (a)
		forget(a);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct allocation *a = find(address);
	if (fault == MODEL_NO_FREE && fault_after-- > 0) {
		pthread_mutex_unlock(&lock);
		return OUT_OF_MEMORY;
	}
	struct stream *in = living(stream);
	bool good = in && a && a->kind == POOLED && a->base == address;
	if (good)
		add(in, FREE)->to = address;
	misuses += in && !good;
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

/* Pools. */

static struct pool *new_pool(void)
{
	struct pool *made = ended_pools;
	if (made)
		ended_pools = made->next;
	else
		made = malloc(sizeof(*made));
	memset(made, 0, sizeof(*made));
	made->fd = -1;
	return made;
}

static bool map_table(struct pool *pool)
{
	pool->slots = mmap(NULL, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd, 0);
	return pool->slots != MAP_FAILED;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	if (props->allocType != 1 || props->location.type != 1 || props->location.id < 0 ||
	    props->location.id >= devices || props->handleTypes & ~1)
		return INVALID_VALUE;
	int fd = make_file("pool", props->location.id, TABLE);
	if (fd < 0)
		return OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	struct pool *made = new_pool();
	made->fd = fd;
	made->device = props->location.id;
	made->is_shown = props->handleTypes & 1;
	made->access = ~0u;
	bool good = map_table(made);
	*pool = made;
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : OUT_OF_MEMORY;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	pthread_mutex_lock(&lock);
	bool good = pool && pool->fd >= 0 && !pool->destroyed;
	if (good) {
		pool->destroyed = true;
		end_pool(pool);
	}
	misuses += !good;
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	*pool = &first_pools[device];
	return device < devices ? SUCCESS : INVALID_DEVICE;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	return cuDeviceGetDefaultMemPool(pool, device);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
	pthread_mutex_lock(&lock);
	bool good = pool && access;
	for (size_t i = 0; good && i < count; i++) {
		int device = access[i].location.id;
		good = access[i].location.type == 1 && device >= 0 && device < devices && access[i].flags == 3 &&
		       (device == pool->device || !getenv("MODEL_CUDA_APART"));
		if (good)
			pool->access |= 1u << device;
	}
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

/* Where a pool has room behind its table. */
static uint64_t room_in(struct pool *pool, size_t bytes, size_t *end)
{
	uint64_t at = TABLE;
again:
	*end = 0;
	for (int i = 0; i < SLOTS; i++) {
		struct slot *slot = &pool->slots[i];
		uint64_t behind = (slot->offset + slot->bytes + STEP - 1) / STEP * STEP;
		if (slot->number && behind > *end)
			*end = behind;
		if (slot->number && at < behind && at + bytes > slot->offset) {
			at = behind;
			goto again;
		}
	}
	if (at + bytes > *end)
		*end = at + bytes;
	return at;
}

static CUresult place_in(struct pool *pool, uint64_t offset, size_t bytes, struct allocation **made)
{
	char *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd, offset);
	uint64_t base = place(bytes);
	if (alias == MAP_FAILED || !base)
		return OUT_OF_MEMORY;
	struct allocation *a = keep(POOLED, base, bytes, -1);
	a->alias = alias;
	a->device = pool->device;
	a->pool = pool;
	pool->allocations++;
	*made = a;
	return SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)stream;
	if (pool >= first_pools && pool < first_pools + DEVICES)
		return make_locked(POOLED, address, bytes);
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	size_t end;
	uint64_t offset = bytes ? room_in(pool, bytes, &end) : 0;
	int slot = 0;
	while (slot < SLOTS && pool->slots[slot].number)
		slot++;
	struct allocation *made = NULL;
	CUresult result = pool->imported || !bytes ? INVALID_VALUE : SUCCESS;
	if (!result && (slot == SLOTS || ftruncate(pool->fd, end)))
		result = OUT_OF_MEMORY;
	if (!result)
		result = place_in(pool, offset, bytes, &made);
	if (!result) {
		made->slot = slot;
		pool->slots[slot] = (struct slot){ (uint64_t)getpid() << 32 | made->id, offset, bytes, 0, 0 };
		*address = made->base;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	struct context *context = current();
	return cuMemAllocFromPoolAsync(address, bytes, &first_pools[context ? context->device : 0], stream);
}

/* Shows a file. The next exec has it, too, unless its new owner says otherwise. */
static CUresult show(void *shared, int fd)
{
	int shown = ipc_is("refused") ? -1 : dup(fd);
	if (shown < 0)
		return ipc_is("refused") ? NOT_SUPPORTED : OPERATING_SYSTEM;
	*(int *)shared = shown;
	return SUCCESS;
}

CUresult cuMemPoolExportToShareableHandle(void *shared, CUmemoryPool pool, int type, unsigned long long flags)
{
	pthread_mutex_lock(&lock);
	showings++;
	bool good = type == 1 && !flags && pool->is_shown && !pool->imported;
	CUresult result = good ? show(shared, pool->fd) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct allocation *a = find(address);
	bool good = a && a->kind == POOLED && !a->opened && a->base == address && a->pool && a->pool->is_shown;
	memset(data, 0, sizeof(*data));
	if (good) {
		struct pointer pointer = { MAGIC, a->pool->slots[a->slot].number, a->slot };
		memcpy(data, &pointer, sizeof(pointer));
	}
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shared, int type, unsigned long long flags)
{
	int fd = (int)(intptr_t)shared, device = device_of(fd, "pool");
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	CUresult result = wait_for_kernels(current());
	if (!result && (type != 1 || flags || device < 0))
		result = INVALID_VALUE;
	if (!result && ipc_is("closed"))
		result = MAP_FAILED_ERROR;
	int own = result ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (!result && own < 0)
		result = OPERATING_SYSTEM;
	if (!result) {
		struct pool *made = new_pool();
		made->fd = own;
		made->device = device;
		made->access = 1u << device;
		made->imported = true;
		result = map_table(made) ? SUCCESS : OUT_OF_MEMORY;
		*pool = made;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	struct pointer pointer;
	memcpy(&pointer, data, sizeof(pointer));
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	CUresult result = wait_for_kernels(current());
	if (!result && (!pool->imported || pointer.magic != MAGIC || pointer.slot < 0 || pointer.slot >= SLOTS))
		result = INVALID_VALUE;
	struct slot *slot = result ? NULL : &pool->slots[pointer.slot];
	if (!result && (!pointer.number || slot->number != pointer.number))
		result = INVALID_VALUE;
	for (struct allocation *a = allocations; a && !result; a = a->next)
		if (a->kind == POOLED && a->opened && a->slot == pointer.slot && a->pool == pool)
			result = ALREADY_MAPPED;
	struct allocation *made = NULL;
	if (!result)
		result = place_in(pool, slot->offset, slot->bytes, &made);
	if (!result) {
		__atomic_fetch_add(&slot->importers, 1, __ATOMIC_SEQ_CST);
		slot->importer = getpid();
		made->opened = true;
		made->slot = (int)pointer.slot;
		*address = made->base;
		openings++;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	struct allocation *a = find(address);
	if (a && a->kind == RESERVED)
		a = NULL;
	if (a && base)
		*base = a->base;
	if (a && bytes)
		*bytes = a->size;
	pthread_mutex_unlock(&lock);
	return a ? SUCCESS : NOT_FOUND;
}

/* Virtual memory. */

static struct physical *new_physical(int fd, size_t size, int device)
{
	struct physical *made = released;
	if (made)
		released = made->next;
	else
		made = malloc(sizeof(*made));
	memset(made, 0, sizeof(*made));
	made->fd = fd;
	made->size = size;
	made->device = device;
	made->holders = 1;
	return made;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	if (flags || !bytes || bytes % STEP || prop->type != 1 || prop->location.type != 1 ||
	    prop->requestedHandleTypes & ~1)
		return INVALID_VALUE;
	if (prop->location.id < 0 || prop->location.id >= devices)
		return INVALID_DEVICE;
	int fd = make_file("physical", prop->location.id, bytes);
	if (fd < 0)
		return OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	struct physical *made = new_physical(fd, bytes, prop->location.id);
	made->is_shown = prop->requestedHandleTypes & 1;
	*handle = (uint64_t)made;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option)
{
	(void)prop;
	(void)option;
	*bytes = STEP;
	return SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct physical *physical = (struct physical *)handle;
	memset(prop, 0, sizeof(*prop));
	prop->type = 1;
	prop->requestedHandleTypes = physical->is_shown;
	prop->location.type = 1;
	prop->location.id = physical->device;
	return SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct physical *gone = (struct physical *)handle;
	pthread_mutex_lock(&lock);
	bool good = gone && gone->holders > 0;
	if (good) {
		gone->holders--;
		end_physical(gone);
	}
	misuses += !good;
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	pthread_mutex_lock(&lock);
	struct allocation *a = find((uint64_t)address);
	bool good = a && a->kind == MAPPED;
	if (good) {
		a->physical->holders++;
		*handle = (uint64_t)a->physical;
	}
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int type,
				      unsigned long long flags)
{
	struct physical *physical = (struct physical *)handle;
	pthread_mutex_lock(&lock);
	showings++;
	bool good = physical->holders > 0 && physical->is_shown && type == 1 && !flags;
	CUresult result = good ? show(shared, physical->fd) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
	struct stat file;
	int fd = (int)(intptr_t)shared, device = device_of(fd, "physical");
	if (type != 1 || device < 0 || fstat(fd, &file))
		return INVALID_VALUE;
	if (ipc_is("closed"))
		return MAP_FAILED_ERROR;
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return OPERATING_SYSTEM;
	pthread_mutex_lock(&lock);
	struct physical *made = new_physical(own, file.st_size, device);
	made->imported = true;
	*handle = (uint64_t)made;
	openings++;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
			     unsigned long long flags)
{
	(void)alignment;
	(void)wanted;
	if (!bytes || bytes % STEP || flags)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	*address = bytes < ARENA ? place(bytes) : 0;
	if (*address)
		keep(RESERVED, *address, bytes, -1)->reservation = *address;
	pthread_mutex_unlock(&lock);
	return *address ? SUCCESS : OUT_OF_MEMORY;
}

/* The whole of a reservation, with nothing there. */
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	size_t all = 0;
	bool good = true;
	for (struct allocation *a = allocations; a; a = a->next) {
		if (!a->reservation || a->reservation != address)
			continue;
		all += a->size;
		good = good && a->kind == RESERVED;
	}
	good = good && all && all == bytes;
	for (struct allocation *a = allocations, *next; good && a; a = next) {
		next = a->next;
		if (a->reservation == address)
			forget(a);
	}
	misuses += !good;
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

/* Cuts what is reserved, so that a piece begins there. */
static struct allocation *cut(uint64_t address)
{
	struct allocation *a = find(address);
	if (!a || a->kind != RESERVED || a->base == address)
		return a;
	struct allocation *rest = keep(RESERVED, address, a->base + a->size - address, -1);
	rest->reservation = a->reservation;
	a->size = address - a->base;
	return rest;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	struct physical *from = (struct physical *)handle;
	if (!bytes || bytes % STEP || address % STEP || offset || flags)
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	struct allocation *a = cut(address);
	bool good = a && a->kind == RESERVED && from->fd >= 0 && from->size >= bytes;
	/* What was unmapped in pieces is one again. */
	while (good && a->size < bytes) {
		struct allocation *next = find(a->base + a->size);
		good = next && next->kind == RESERVED && next->reservation == a->reservation;
		if (good) {
			a->size += next->size;
			forget(next);
		}
	}
	if (good) {
		if (a->size > bytes)
			cut(address + bytes);
		a->kind = MAPPED;
		a->alias = map_alias(from->fd, bytes);
		a->device = from->device;
		a->context = NULL;
		a->access = 0;
		a->physical = from;
		a->opened = from->imported;
		from->mappings++;
		const char *ids = getenv("MODEL_CUDA_IDS");
		if (!ids || strcmp(ids, "kept"))
			a->id = next_id++;
	}
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	struct allocation *a = find(address);
	bool good = a && a->kind == MAPPED && a->base == address && a->size == bytes && !is_named(a);
	misuses += !good;
	/* It may wait for the device, as may the next one. */
	if (good && current())
		wait_for_kernels(current());
	if (good) {
		munmap(a->alias, a->size);
		a->physical->mappings--;
		end_physical(a->physical);
		a->physical = NULL;
		a->alias = NULL;
		a->opened = false;
		a->kind = RESERVED;
	}
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	pthread_mutex_lock(&lock);
	CUresult result = current() ? wait_for_kernels(current()) : SUCCESS;
	for (uint64_t at = address; !result && at < address + bytes;) {
		struct allocation *a = find(at);
		if (!a || a->kind != MAPPED || a->base != at || at + a->size > address + bytes)
			result = INVALID_VALUE;
		for (size_t i = 0; !result && i < count; i++) {
			int device = access[i].location.id;
			if (access[i].location.type != 1 || access[i].flags & ~3)
				result = INVALID_VALUE;
			else if (device < 0 || device >= devices)
				result = INVALID_DEVICE;
			else if (device != a->device && getenv("MODEL_CUDA_APART"))
				result = PEER_ACCESS_UNSUPPORTED;
			else if (access[i].flags)
				a->access |= 1u << device;
			else
				a->access &= ~(1u << device);
		}
		at += result ? 0 : a->size;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* What is known of an address. */

static bool names_reservations(void)
{
	const char *ranges = getenv("MODEL_CUDA_RANGES");
	return ranges && !strcmp(ranges, "reserved");
}

static size_t reserved_at(uint64_t reservation)
{
	size_t all = 0;
	for (struct allocation *a = allocations; a; a = a->next)
		all += a->reservation == reservation ? a->size : 0;
	return all;
}

static CUresult attribute_of(struct allocation *a, int attribute, uint64_t address, void *data)
{
	switch (attribute) {
	case 1:
		*(struct context **)data = a->kind == POOLED ? NULL : a->context;
		return SUCCESS;
	case 2:
		*(unsigned int *)data = a->kind == PINNED ? 1 : 2;
		return SUCCESS;
	case 3:
	case 4:
		*(uint64_t *)data = address;
		return SUCCESS;
	case 7:
		*(unsigned long long *)data = a->id;
		return SUCCESS;
	case 8:
		*(unsigned int *)data = a->kind == MANAGED;
		return SUCCESS;
	case 9:
		*(int *)data = a->device;
		return SUCCESS;
	case 10:
		*(int *)data = a->kind == DEVICE && !a->opened;
		return SUCCESS;
	case 11:
		*(uint64_t *)data = names_reservations() && a->reservation ? a->reservation : a->base;
		return SUCCESS;
	case 12:
		*(size_t *)data = names_reservations() && a->reservation ? reserved_at(a->reservation) : a->size;
		return SUCCESS;
	case 13:
		*(int *)data = a->kind != RESERVED;
		return SUCCESS;
	case 17:
		*(struct pool **)data = a->pool ? a->pool : a->kind == POOLED ? &first_pools[a->device] : NULL;
		return SUCCESS;
	default:
		return INVALID_VALUE;
	}
}

/* A context that has failed answers nothing. */
static CUresult failed(void)
{
	queries++;
	return current() ? current()->error : SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
	if (!initialized)
		return NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	CUresult bad = failed();
	if (bad) {
		pthread_mutex_unlock(&lock);
		return bad;
	}
	struct allocation *a = find(address);
	CUresult result = a && a->kind != RESERVED ? attribute_of(a, attribute, address, data) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr address)
{
	if (!initialized)
		return NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	CUresult bad = failed();
	if (bad) {
		pthread_mutex_unlock(&lock);
		return bad;
	}
	struct allocation *a = find(address);
	CUresult result = SUCCESS;
	for (unsigned int i = 0; i < count; i++) {
		bool wide = attributes[i] == 1 || attributes[i] == 7 || attributes[i] == 11 || attributes[i] == 12;
		memset(data[i], 0, wide ? 8 : 4);
		if (attributes[i] == 9)
			*(int *)data[i] = -2;
		if (a && a->kind != RESERVED && attribute_of(a, attributes[i], address, data[i]))
			result = INVALID_VALUE;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* Copies. */

/* Of memory that no device can reach, a copy is made before the call returns, or waited for. */
static bool is_pageable(uint64_t address)
{
	return !find(address) && !(address >= arena && address < arena + ARENA);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	copies++;
	kept += stalled;
	while (stalled)
		pthread_cond_wait(&changed, &lock);
	if (!bytes) {
		pthread_mutex_unlock(&lock);
		return SUCCESS;
	}
	struct allocation *a = find(to), *b = find(from);
	CUresult result = SUCCESS;
	if ((a && bytes > a->base + a->size - to) || (b && bytes > b->base + b->size - from)) {
		result = INVALID_VALUE;
	} else {
		struct stream *in = living(stream);
		if (!in) {
			pthread_mutex_unlock(&lock);
			return INVALID_HANDLE;
		}
		struct op *op = add(in, COPY);
		op->to = to;
		op->from = from;
		op->bytes = bytes;
		if (is_pageable(to) || is_pageable(from))
			result = wait_for_stream(in);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return cuMemcpyAsync(to, (uint64_t)from, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return cuMemcpyAsync((uint64_t)to, from, bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	CUresult result = cuMemcpyAsync(to, from, bytes, stream);
	pthread_mutex_lock(&lock);
	between += !result && bytes > SHORT;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
			   CUstream stream)
{
	(void)to_context;
	(void)from_context;
	return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

CUresult cuMemcpy2DAsync_v2(const void *rows, CUstream stream)
{
	(void)rows;
	(void)stream;
	return NOT_SUPPORTED;
}

static CUresult copy_and_wait(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	CUresult result = cuMemcpyAsync(to, from, bytes, NULL);
	if (result)
		return result;
	pthread_mutex_lock(&lock);
	result = wait_for_stream(named(NULL));
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy_and_wait(to, from, bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy_and_wait(to, (uint64_t)from, bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy_and_wait((uint64_t)to, from, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy_and_wait(to, from, bytes);
}

/* Streams and events. */

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	*stream = start(current(), flags & CU_STREAM_NON_BLOCKING);
	objects += *stream != NULL;
	pthread_mutex_unlock(&lock);
	return *stream ? SUCCESS : OUT_OF_MEMORY;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	pthread_mutex_lock(&lock);
	stream->gone = true;
	objects--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct stream *in = living(stream);
	CUresult result = !in ? INVALID_HANDLE : in->head ? NOT_READY : SUCCESS;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	CUresult result = wait_for_stream(named(stream));
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct op *op = add(named(stream), WAIT_EVENT);
	op->event = event;
	op->turn = event->recorded;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	*event = calloc(1, sizeof(**event));
	(*event)->context = current();
	(*event)->context_id = current()->id;
	objects++;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct stream *in = living(stream);
	bool is_of_this = event->context == current() && event->context_id == current()->id;
	misuses += !is_of_this;
	if (!in || !is_of_this) {
		pthread_mutex_unlock(&lock);
		return INVALID_HANDLE;
	}
	struct op *last = in->head;
	while (last && last->next)
		last = last->next;
	if (last && last->work == COPY && last->bytes > SHORT && fails(MODEL_NO_EVENT)) {
		pthread_mutex_unlock(&lock);
		return OUT_OF_MEMORY;
	}
	struct op *op = add(in, SET_EVENT);
	op->event = event;
	op->turn = ++event->recorded;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
	pthread_mutex_lock(&lock);
	CUresult result = check(event->context);
	if (event->context_id != event->context->id) {
		misuses++;
		result = CONTEXT_IS_DESTROYED;
	}
	if (!result && event->done < event->recorded)
		result = NOT_READY;
	pthread_mutex_unlock(&lock);
	return result;
}

/* Its memory stays: work that is queued may still name it. */
CUresult cuEventDestroy_v2(CUevent event)
{
	pthread_mutex_lock(&lock);
	CUresult result = event->gone ? INVALID_HANDLE : SUCCESS;
	event->gone = true;
	objects -= !result;
	pthread_mutex_unlock(&lock);
	return result;
}

/* Other processes. */

struct shown {
	int pid;
	int fd;
	uint64_t inode;
	size_t size;
	int device;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	showings++;
	if (ipc_is("refused")) {
		pthread_mutex_unlock(&lock);
		return NOT_SUPPORTED;
	}
	NEED_CONTEXT();
	struct allocation *a = find(address);
	struct stat file;
	bool good = a && a->kind == DEVICE && !a->opened && a->base == address && !fstat(a->fd, &file);
	memset(handle, 0, sizeof(*handle));
	if (good) {
		struct shown shown = { getpid(), a->fd, file.st_ino, a->size, a->device };
		memcpy(handle, &shown, sizeof(shown));
	}
	pthread_mutex_unlock(&lock);
	return good ? SUCCESS : INVALID_VALUE;
}

/* The memory that a handle names, or -1: it is not there any more. */
static int memory_of(const struct shown *shown)
{
	char path[64];
	struct stat file;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", shown->pid, shown->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	/* The number of a descriptor may be another one's meanwhile. */
	if (fstat(fd, &file) || file.st_ino != shown->inode || (size_t)file.st_size < shown->size) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Opens a handle, under the lock. */
static CUresult open_shown(CUdeviceptr *address, const CUipcMemHandle *handle, bool lazily)
{
	struct shown shown;
	memcpy(&shown, handle, sizeof(shown));
	struct context *context = current();
	int most = getenv("MODEL_CUDA_MAPPINGS") ? atoi(getenv("MODEL_CUDA_MAPPINGS")) : 1 << 20;
	for (struct allocation *a = allocations; a; a = a->next) {
		if (a->kind != DEVICE || !a->opened)
			continue;
		most--;
		if (memcmp(&a->handle, handle, sizeof(*handle)))
			continue;
		if (a->context == context) {
			a->openings++;
			*address = a->base;
			return SUCCESS;
		}
		if (a->context->device == context->device)
			return ALREADY_MAPPED;
	}
	if (shown.device < 0 || shown.device >= devices)
		return INVALID_DEVICE;
	if (shown.device != context->device && (!lazily || getenv("MODEL_CUDA_APART")))
		return PEER_ACCESS_UNSUPPORTED;
	if (most <= 0)
		return OUT_OF_MEMORY;
	int fd = memory_of(&shown);
	if (fd < 0)
		return MAP_FAILED_ERROR;
	uint64_t base = place(shown.size);
	if (!base) {
		close(fd);
		return OUT_OF_MEMORY;
	}
	struct allocation *a = keep(DEVICE, base, shown.size, fd);
	a->alias = map_alias(fd, shown.size);
	a->device = shown.device;
	a->opened = true;
	a->handle = *handle;
	a->openings = 1;
	*address = base;
	openings++;
	return SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	struct shown shown;
	memcpy(&shown, &handle, sizeof(shown));
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	/* Also before it says no. */
	CUresult result = wait_for_kernels(current());
	if (!result && shown.pid == getpid())
		result = INVALID_CONTEXT;
	if (!result && ipc_is("closed"))
		result = MAP_FAILED_ERROR;
	if (!result)
		result = open_shown(address, &handle, flags & 1);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct allocation *a = find(address);
	bool good = a && a->opened && a->kind == DEVICE && a->base == address && a->context == current();
	if (good && is_named(a)) {
		good = false;
	}
	misuses += !good;
	CUresult result = good ? wait_for_kernels(current()) : INVALID_VALUE;
	/* It may have been closed while this one waited. */
	a = good ? find(address) : NULL;
	if (a && a->opened && !--a->openings)
		forget(a);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	(void)handle;
	(void)event;
	return NOT_SUPPORTED;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	(void)event;
	(void)handle;
	return NOT_SUPPORTED;
}

/* Kernels. */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	*module = (CUmodule)image;
	return check(current());
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	(void)module;
	*function = &spin;
	return strcmp(name, "spin") ? NOT_FOUND : SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			CUstream stream, void **parameters, void **extra)
{
	(void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared;
	(void)extra;
	if (function != &spin)
		return INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	NEED_CONTEXT();
	struct stream *in = named(stream);
	struct op *op = add(in, SPIN);
	op->to = *(uint64_t *)parameters[0];
	op->value = *(uint32_t *)parameters[1];
	/* As on a device: what nothing stands before has begun when anything that is called later begins. */
	op->begun = in->head == op && may_run(in);
	occupied[current()->device] |= op->begun;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

/* How functions are found. */

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *found)
{
	(void)flags;
	Dl_info own;
	char name[128];
	*function = NULL;
	*found = 1;
	if (!dladdr((void *)cuInit, &own))
		return NOT_FOUND;
	void *library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		return NOT_FOUND;
	/* What has two versions here got the second one in CUDA 3.2 or later. */
	snprintf(name, sizeof(name), "%s_v2", symbol);
	void *second = version >= 3020 ? dlsym(library, name) : NULL;
	*function = second ? second : dlsym(library, symbol);
	dlclose(library);
	*found = *function ? 0 : 1;
	return SUCCESS;
}
