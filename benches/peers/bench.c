/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One rank of a job that the comparison of MPI libraries drives: does what rank 0 is told through a socket, batch by batch.
 *
 *   bench SOCKET PAGE KIND PROCESSORS
 *
 * - SOCKET: where rank 0 finds the program that gives orders (unix, stream)
 * - PAGE: a file of one page that all ranks map: orders for the other ranks, and the lines of the raw hand-off
 * - KIND: memory of the messages: malloc, or alloc for MPI_Alloc_mem
 * - PROCESSORS: one for each rank, with commas between them
 *
 * Between orders no rank uses a processor: rank 0 sleeps in the socket, the others in a futex. So the jobs of several
 * libraries can stand side by side and take turns. Orders and answers are lines:
 *
 *   batch PATTERN MODE SIZE WINDOW ITERATIONS   done MICROSECONDS BEFORE_NS AFTER_NS
 *   check PATTERN SIZE                          checked BYTES
 *   memory                                      memory PSS_KB
 *   release                                     released
 *   leave                                       left
 *
 * and "failed WORDS" to any of them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PROBE_ROUNDS 150
#define POOL ((size_t)128 << 20) /* memory through which the buffers of mode offcache rotate */
#define MOST_WINDOW 64

/* Those before BARRIER are of two ranks. */
enum pattern {
	PINGPONG, SENDRECV, BW, BIBW, RATE,
	BARRIER, BCAST, REDUCE, ALLREDUCE, REDUCE_SCATTER, SCAN, EXSCAN, GATHER, SCATTER, ALLGATHER, ALLTOALL, PATTERNS
};
static const char *const pattern_names[PATTERNS] = {
	"pingpong", "sendrecv", "bw", "bibw", "rate",
	"barrier", "bcast", "reduce", "allreduce", "reducescatter", "scan", "exscan", "gather", "scatter", "allgather", "alltoall",
};

enum mode { SAME, OFFCACHE, REWRITE, MODES };
static const char *const mode_names[MODES] = { "same", "offcache", "rewrite" };

enum what { BATCH, CHECK, MEMORY, RELEASE, LEAVE };

struct order {
	int what, pattern, mode, window, one_root;
	uint64_t size, iterations;
};

/* What all ranks map. */
struct page {
	_Alignas(64) _Atomic uint32_t number; /* of the order; a futex */
	_Atomic int32_t leader;               /* pid of rank 0 */
	struct order order;
	_Alignas(128) _Atomic uint64_t ping;
	_Alignas(128) _Atomic uint64_t pong;
};

static struct page *page;
static int rank, size, use_alloc, line = -1;
static unsigned char *source, *target;
static size_t held;

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void say(const char *format, ...)
{
	char text[256];
	va_list list;
	int length;
	ssize_t done = 0;

	va_start(list, format);
	length = vsnprintf(text, sizeof(text) - 1, format, list);
	va_end(list);
	if (length >= (int)sizeof(text) - 1)
		length = sizeof(text) - 2;
	text[length++] = '\n';
	while (line >= 0 && done < length) {
		ssize_t n = write(line, text + done, length - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			MPI_Abort(MPI_COMM_WORLD, 2);
		done += n;
	}
}

/* The reply when all ranks have done the order. */
static char reply[256];

static void die(const char *what)
{
	fprintf(stderr, "rank %d: %s: %s\n", rank, what, strerror(errno));
	MPI_Abort(MPI_COMM_WORLD, 2);
	exit(2);
}

/*
 * Real-time priority for all threads, so that other work does not count; or none. Only between the beginning and the
 * end of MPI: its launcher has to run then, and real-time priority might keep it from that for ever. In turn, since
 * some libraries connect by a thread of their own.
 */
static void set_urgent(int urgent)
{
	const char *asked = getenv("PEERS_PRIORITY");
	struct sched_param param = { .sched_priority = urgent && asked ? atoi(asked) : 0 };
	struct dirent *entry;
	DIR *tasks;

	if (!asked)
		return;
	tasks = opendir("/proc/self/task");
	while (tasks && (entry = readdir(tasks)))
		if (atoi(entry->d_name) > 0)
			sched_setscheduler(atoi(entry->d_name), urgent ? SCHED_RR : SCHED_OTHER, &param);
	if (tasks)
		closedir(tasks);
}

/* To the processor of this rank in the list. */
static void pin(const char *list, int which)
{
	cpu_set_t one;
	char *end;

	for (; which > 0 && list; which--) {
		list = strchr(list, ',');
		if (list)
			list++;
	}
	if (!list)
		return;
	CPU_ZERO(&one);
	CPU_SET(strtoul(list, &end, 10) % CPU_SETSIZE, &one);
	if (end == list || sched_setaffinity(0, sizeof(one), &one))
		fprintf(stderr, "processor %s: %s\n", list, strerror(errno));
}

/* --- memory ------------------------------------------------------------------------------------------------------------------ */

/* malloc puts buffers from 128 KiB on so many bytes behind a page; these do so whatever their size. */
#define BEHIND_PAGE 16

static unsigned char *get(size_t bytes)
{
	void *at = NULL;

	if (use_alloc) {
		if (MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &at) != MPI_SUCCESS)
			at = NULL;
	} else if (posix_memalign(&at, 4096, bytes + BEHIND_PAGE)) {
		at = NULL;
	} else {
		at = (unsigned char *)at + BEHIND_PAGE;
	}
	if (!at)
		die("no memory");
	memset(at, 1, bytes);
	return at;
}

static void give_back(void)
{
	if (!held)
		return;
	if (use_alloc) {
		MPI_Free_mem(source);
		MPI_Free_mem(target);
	} else {
		free(source - BEHIND_PAGE);
		free(target - BEHIND_PAGE);
	}
	source = target = NULL;
	held = 0;
}

static void need(size_t bytes)
{
	if (bytes <= held)
		return;
	give_back();
	source = get(bytes);
	target = get(bytes);
	held = bytes;
}

/* Doubles that each rank gets of a vector that is scattered; at least one. */
static size_t share(const struct order *o)
{
	size_t doubles = o->size / 8 / (size_t)size;

	return doubles ? doubles : 1;
}

/* Bytes that one operation takes of source or target, whichever is more. */
static size_t span(const struct order *o)
{
	size_t one = o->size ? o->size : 1;

	switch (o->pattern) {
	case GATHER:
	case SCATTER:
	case ALLGATHER:
	case ALLTOALL:
		return one * size;
	case REDUCE_SCATTER:
		return share(o) * 8 * (size_t)size > one ? share(o) * 8 * (size_t)size : one;
	case BW:
	case BIBW:
	case RATE:
		return ((one + 63) & ~(size_t)63) * o->window;
	default:
		return one;
	}
}

static size_t step(const struct order *o)
{
	/* Not a multiple of a page: the same place in every page would share the sets of the caches. */
	return ((span(o) + 4095) & ~(size_t)4095) + 64;
}

static void rewrite(unsigned char *at, size_t bytes, uint64_t with)
{
	memset(at, (int)(with * 37 + 11), bytes);
}

/* --- the raw hand-off -------------------------------------------------------------------------------------------------------- */

/* Nanoseconds that a line takes from the one processor to the other; of ranks 0 and the last. */
static double probe(uint64_t *counter)
{
	double begin = now_us();

	if (rank == 0) {
		for (int i = 0; i < PROBE_ROUNDS; i++) {
			atomic_store_explicit(&page->ping, ++*counter, memory_order_release);
			while (atomic_load_explicit(&page->pong, memory_order_acquire) != *counter)
				;
		}
	} else if (rank == size - 1) {
		for (int i = 0; i < PROBE_ROUNDS; i++) {
			++*counter;
			while (atomic_load_explicit(&page->ping, memory_order_acquire) != *counter)
				;
			atomic_store_explicit(&page->pong, *counter, memory_order_release);
		}
	} else {
		*counter += PROBE_ROUNDS;
	}
	return (now_us() - begin) * 1e3 / (2.0 * PROBE_ROUNDS);
}

/* --- patterns ---------------------------------------------------------------------------------------------------------------- */

/* The root of operation i. Where roots take turns no rank runs ahead. */
static int root_of(const struct order *o, uint64_t i)
{
	return o->one_root ? 0 : (int)(i % (uint64_t)size);
}

/* One operation, number i, on the bytes at the two places. */
static void collective(const struct order *o, uint64_t i, unsigned char *from, unsigned char *to)
{
	int root = root_of(o, i), bytes = (int)o->size, doubles = bytes / 8;

	switch (o->pattern) {
	case BARRIER:
		MPI_Barrier(MPI_COMM_WORLD);
		break;
	case BCAST:
		MPI_Bcast(rank == root ? from : to, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
		break;
	case REDUCE:
		MPI_Reduce(from, to, doubles, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
		break;
	case ALLREDUCE:
		MPI_Allreduce(from, to, doubles, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		break;
	case REDUCE_SCATTER:
		MPI_Reduce_scatter_block(from, to, (int)share(o), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		break;
	case SCAN:
		MPI_Scan(from, to, doubles, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		break;
	case EXSCAN:
		MPI_Exscan(from, to, doubles, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		break;
	case GATHER:
		MPI_Gather(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
		break;
	case SCATTER:
		MPI_Scatter(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
		break;
	case ALLGATHER:
		MPI_Allgather(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, MPI_COMM_WORLD);
		break;
	case ALLTOALL:
		MPI_Alltoall(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, MPI_COMM_WORLD);
		break;
	}
}

static void windowed(const struct order *o, unsigned char *from, unsigned char *to)
{
	MPI_Request all[2 * MOST_WINDOW];
	size_t stride = (o->size + 63) & ~(size_t)63;
	int n = 0, peer = size - 1 - rank, both = o->pattern == BIBW;
	char answer = 0;

	if (!stride)
		stride = 64;
	for (int i = 0; i < o->window; i++)
		if (rank != 0 || both)
			MPI_Irecv(to + i * stride, (int)o->size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &all[n++]);
	/* Nothing writes the sources of a window in mode `same`, so one will do, as benchmarks of this kind have it. */
	for (int i = 0; i < o->window; i++)
		if (rank == 0 || both)
			MPI_Isend(from + (o->mode == SAME ? 0 : i * stride), (int)o->size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &all[n++]);
	MPI_Waitall(n, all, MPI_STATUSES_IGNORE);
	/* Nobody runs ahead by more than a window. */
	if (rank == 0)
		MPI_Recv(&answer, 1, MPI_CHAR, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		MPI_Send(&answer, 1, MPI_CHAR, peer, 2, MPI_COMM_WORLD);
}

static void pingpong(const struct order *o, unsigned char *from, unsigned char *to, uint64_t i)
{
	int bytes = (int)o->size, peer = size - 1 - rank;

	if (rank == 0) {
		if (o->mode == REWRITE)
			rewrite(from, o->size, i);
		MPI_Send(from, bytes, MPI_BYTE, peer, 3, MPI_COMM_WORLD);
		MPI_Recv(to, bytes, MPI_BYTE, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		MPI_Recv(to, bytes, MPI_BYTE, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (o->mode == REWRITE)
			rewrite(from, o->size, i);
		MPI_Send(from, bytes, MPI_BYTE, peer, 3, MPI_COMM_WORLD);
	}
}

/* Both send and receive at once. */
static void exchange(const struct order *o, unsigned char *from, unsigned char *to)
{
	int bytes = (int)o->size, peer = size - 1 - rank;

	MPI_Sendrecv(from, bytes, MPI_BYTE, peer, 3, to, bytes, MPI_BYTE, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int takes_part(const struct order *o)
{
	return o->pattern >= BARRIER || rank == 0 || rank == size - 1;
}

static void batch(const struct order *o)
{
	static uint64_t counter;
	size_t each = step(o), places, at = 0;
	double before, after, begin, end, messages = (double)o->iterations;

	need(o->mode == OFFCACHE ? POOL + 2 * each : each);
	places = o->mode == OFFCACHE ? POOL / each : 1;
	if (places == 0)
		places = 1;
	MPI_Barrier(MPI_COMM_WORLD);
	before = probe(&counter);
	if (takes_part(o) && o->pattern < BARRIER) {
		/* Both start together: the probe ended with rank 0. */
		char token = 0;
		int peer = size - 1 - rank;

		MPI_Sendrecv(&token, 1, MPI_CHAR, peer, 4, &token, 1, MPI_CHAR, peer, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		MPI_Barrier(MPI_COMM_WORLD);
	}
	begin = now_us();
	if (takes_part(o)) {
		for (uint64_t i = 0; i < o->iterations; i++) {
			unsigned char *from = source + at * each, *to = target + at * each;

			if (o->pattern == PINGPONG) {
				pingpong(o, from, to, i);
			} else if (o->pattern == SENDRECV) {
				if (o->mode == REWRITE)
					rewrite(from, o->size, i);
				exchange(o, from, to);
			} else if (o->pattern < BARRIER) {
				windowed(o, from, to);
			} else {
				if (o->mode == REWRITE)
					rewrite(from, o->size, i);
				collective(o, i, from, to);
			}
			if (++at == places)
				at = 0;
		}
	}
	end = now_us();
	MPI_Barrier(MPI_COMM_WORLD);
	after = probe(&counter);
	if (o->pattern == PINGPONG)
		messages *= 2;
	else if (o->pattern < BARRIER)
		messages *= o->window;
	if (rank == 0)
		snprintf(reply, sizeof(reply), "done %.6f %.2f %.2f", (end - begin) / messages, before, after);
}

/* --- checks ------------------------------------------------------------------------------------------------------------------ */

/* Byte b of the block that rank `of` contributes to operation i. */
static unsigned char expected(int of, uint64_t i, size_t b)
{
	return (unsigned char)(b * 7 + (b >> 8) + (size_t)of * 31 + i * 3 + 1);
}

static uint64_t wrong;

static void compare(const unsigned char *got, int of, uint64_t i, size_t offset, size_t bytes)
{
	for (size_t b = 0; b < bytes; b++)
		if (got[b] != expected(of, i, offset + b))
			wrong++;
}

static double number(int of, uint64_t i, size_t e)
{
	return (double)((e * 5 + (size_t)of * 3 + i) % 1021);
}

/* Each of the `mine` sums at `target`, from element `first` of the vectors on, over the ranks below `below`. */
static void compare_sums(uint64_t i, size_t first, size_t mine, int below)
{
	for (size_t e = 0; e < mine; e++) {
		double sum = 0;

		for (int of = 0; of < below; of++)
			sum += number(of, i, first + e);
		if (((double *)(void *)target)[e] != sum)
			wrong++;
	}
}

/* The same messages, each compared with what was sent. */
static void check(const struct order *o)
{
	uint64_t bytes = 0, sums[2], all[2];
	size_t n = o->size;
	int peer = size - 1 - rank;

	wrong = 0;
	need(step(o));
	for (uint64_t i = 0; i < o->iterations; i++) {
		size_t doubles = n / 8, blocks = o->pattern == ALLTOALL || o->pattern == SCATTER ? (size_t)size : 1;
		int root = root_of(o, i);
		int sums_up = o->pattern >= REDUCE && o->pattern <= EXSCAN;

		memset(target, 0xa5, held);
		if (sums_up)
			for (size_t e = 0; e * 8 < span(o); e++)
				((double *)(void *)source)[e] = number(rank, i, e);
		else
			for (size_t b = 0; b < n * blocks && b < held; b++)
				source[b] = expected(rank, i, b);
		if (o->pattern >= BARRIER) {
			collective(o, i, source, target);
		} else if (takes_part(o)) {
			/* Bandwidth and rate are patterns of the same messages. */
			MPI_Sendrecv(source, (int)n, MPI_BYTE, peer, 5, target, (int)n, MPI_BYTE, peer, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			compare(target, peer, i, 0, n);
			bytes += n;
		}
		if (o->pattern == BCAST && rank != root) {
			compare(target, root, i, 0, n);
			bytes += n;
		} else if (o->pattern == SCATTER) {
			compare(target, root, i, (size_t)rank * n, n);
			bytes += n;
		} else if (o->pattern == ALLGATHER || (o->pattern == GATHER && rank == root)) {
			for (int of = 0; of < size; of++)
				compare(target + (size_t)of * n, of, i, 0, n);
			bytes += n * size;
		} else if (o->pattern == ALLTOALL) {
			for (int of = 0; of < size; of++)
				compare(target + (size_t)of * n, of, i, (size_t)rank * n, n);
			bytes += n * size;
		} else if (sums_up && (o->pattern != REDUCE || rank == root)) {
			size_t mine = o->pattern == REDUCE_SCATTER ? share(o) : doubles;
			size_t first = o->pattern == REDUCE_SCATTER ? mine * rank : 0;
			int below = o->pattern == SCAN ? rank + 1 : o->pattern == EXSCAN ? rank : size;

			/* The first rank of an exclusive scan gets nothing. */
			if (below > 0) {
				compare_sums(i, first, mine, below);
				bytes += mine * 8;
			}
		}
	}
	sums[0] = bytes;
	sums[1] = wrong;
	MPI_Allreduce(sums, all, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0) {
		if (all[1])
			snprintf(reply, sizeof(reply), "failed %llu wrong values of %s, %zu bytes", (unsigned long long)all[1], pattern_names[o->pattern], n);
		else
			snprintf(reply, sizeof(reply), "checked %llu", (unsigned long long)all[0]);
	}
}

/* What a rank holds after it has sent ten integers to every other. */
static void memory(void)
{
	char text[256];
	long kb = -1;
	FILE *file;

	for (int i = 0; i < 10; i++)
		for (int d = 1; d < size; d++) {
			int to = (rank + d) % size, from = (rank + size - d) % size, mine = rank, got;

			MPI_Sendrecv(&mine, 1, MPI_INT, to, 6, &got, 1, MPI_INT, from, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
	if (rank == 0) {
		file = fopen("/proc/self/smaps_rollup", "r");
		while (file && fgets(text, sizeof(text), file))
			if (sscanf(text, "Pss: %ld", &kb) == 1)
				break;
		if (file)
			fclose(file);
		snprintf(reply, sizeof(reply), "memory %ld", kb);
	}
}

/* --- orders ------------------------------------------------------------------------------------------------------------------ */

static int find(const char *name, const char *const *names, int count)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(name, names[i]))
			return i;
	return -1;
}

/* Whether the line is an order; then it is in *o. */
static int parse(const char *text, struct order *o)
{
	char what[16] = "", pattern[16] = "same", mode[16] = "same";
	unsigned long long bytes = 0, window = 1, iterations = 1;
	int one_root = 0;
	int fields = sscanf(text, "%15s %15s %15s %llu %llu %llu %d", what, pattern, mode, &bytes, &window, &iterations, &one_root);

	if (fields < 1)
		return 0;
	memset(o, 0, sizeof(*o));
	if (!strcmp(what, "memory") || !strcmp(what, "release") || !strcmp(what, "leave")) {
		o->what = what[0] == 'm' ? MEMORY : what[0] == 'r' ? RELEASE : LEAVE;
		return 1;
	}
	o->what = !strcmp(what, "batch") ? BATCH : !strcmp(what, "check") ? CHECK : -1;
	o->pattern = find(pattern, pattern_names, PATTERNS);
	o->mode = find(mode, mode_names, MODES);
	o->size = bytes;
	o->window = (int)window;
	o->iterations = iterations;
	o->one_root = one_root;
	return fields == 7 && o->what >= 0 && o->pattern >= 0 && o->mode >= 0 && bytes <= ((size_t)1 << 30) && window >= 1 &&
	       window <= MOST_WINDOW && iterations >= 1;
}

static void hear(struct order *o)
{
	static char text[512];
	static size_t have;

	for (;;) {
		char *end = memchr(text, '\n', have);
		ssize_t n;

		if (end) {
			size_t used = (size_t)(end + 1 - text);
			int good;

			*end = 0;
			good = parse(text, o);
			if (!good)
				say("failed not an order: %.100s", text);
			memmove(text, text + used, have - used);
			have -= used;
			if (good)
				return;
			continue;
		}
		n = read(line, text + have, sizeof(text) - 1 - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			/* The process that gives orders is gone. */
			o->what = LEAVE;
			return;
		}
		have += (size_t)n;
	}
}

static void follow(uint32_t known)
{
	struct timespec second = { .tv_sec = 1 };

	while (atomic_load(&page->number) == known) {
		syscall(SYS_futex, &page->number, FUTEX_WAIT, known, &second, NULL, 0);
		if (atomic_load(&page->leader) && kill(atomic_load(&page->leader), 0) && errno == ESRCH) {
			fprintf(stderr, "rank %d: rank 0 is gone\n", rank);
			_exit(3);
		}
	}
}

static void join(const char *socket_path, const char *page_path)
{
	struct sockaddr_un where = { .sun_family = AF_UNIX };
	int fd = open(page_path, O_RDWR);

	if (fd < 0)
		die(page_path);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		die("mmap");
	if (rank)
		return;
	atomic_store(&page->leader, getpid());
	line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (strlen(socket_path) >= sizeof(where.sun_path)) {
		errno = ENAMETOOLONG;
		die(socket_path);
	}
	strcpy(where.sun_path, socket_path);
	if (line < 0 || connect(line, (struct sockaddr *)&where, sizeof(where)))
		die(socket_path);
	say("ready %d", size);
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "ONECOPY_JOB_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK" };
	uint32_t number = 0;

	/* Before the library looks, where there is a rank already. */
	for (size_t i = 0; argc == 5 && i < sizeof(names) / sizeof(*names); i++)
		if (getenv(names[i])) {
			pin(argv[4], atoi(getenv(names[i])));
			break;
		}
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc == 1) {
		/* Only a start and an end. */
		MPI_Finalize();
		return 0;
	}
	if (argc != 5) {
		fprintf(stderr, "usage: bench SOCKET PAGE malloc|alloc PROCESSORS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	pin(argv[4], rank);
	use_alloc = !strcmp(argv[3], "alloc");
	join(argv[1], argv[2]);
	set_urgent(1);
	for (;;) {
		struct order o;

		if (rank == 0) {
			hear(&o);
			page->order = o;
			number++;
			atomic_store(&page->number, number);
			syscall(SYS_futex, &page->number, FUTEX_WAKE, 1 << 20, NULL, NULL, 0);
		} else {
			follow(number);
			number = atomic_load(&page->number);
			o = page->order;
		}
		if (o.what == BATCH)
			batch(&o);
		else if (o.what == CHECK)
			check(&o);
		else if (o.what == MEMORY)
			memory();
		else if (o.what == RELEASE) {
			give_back();
			strcpy(reply, "released");
		}
		else
			break;
		/* An order is taken by all before the next is written, and nobody works when the next job does. */
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0)
			say("%s", reply);
	}
	set_urgent(0);
	give_back();
	MPI_Finalize();
	if (rank == 0) {
		say("left");
		close(line);
	}
	return 0;
}
