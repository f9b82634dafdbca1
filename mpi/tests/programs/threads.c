/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Many threads in each rank, each with communicators of its own, do random point-to-point and collective communication and check what comes.
 * Threads of the same number do the same steps on all ranks: what they do follows from the seed, the thread and the step.
 *
 *   threads SECONDS SEED THREADS
 */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 16, MOST_THREADS = 64, LARGEST = 40000, STALLED = 120 };

static int rank, size;
static double seconds;
static uint64_t seed;
static MPI_Comm shared;
static _Atomic long total;

/* What a thread has, and where it is. */
struct worker {
    int number;
    uint64_t random;
    /* One communicator for messages, one for collectives. */
    MPI_Comm link, all;
    unsigned *out, *in;
    _Atomic long step;
    const char *_Atomic what;
};

static struct worker workers[MOST_THREADS];

#define EXPECT(it)                                                                                 \
    do {                                                                                           \
        if (!(it)) {                                                                               \
            fprintf(stderr, "%s:%d: rank %d, thread %d, step %ld (%s), seed %llu: %s\n", __FILE__,   \
                    __LINE__, rank, w->number, (long)w->step, (const char *)w->what,               \
                    (unsigned long long)seed, #it);                                                \
            MPI_Abort(MPI_COMM_WORLD, 98);                                                         \
        }                                                                                          \
    } while (0)
#define DO(call) EXPECT((call) == MPI_SUCCESS)

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static unsigned pick(struct worker *w, unsigned limit) { return (unsigned)(next(&w->random) % limit); }

/* Mostly short, now and then long. */
static int length(struct worker *w) {
    switch (pick(w, 8)) {
    case 0: return 0;
    case 1: return (int)pick(w, LARGEST);
    case 2: return (int)pick(w, 3000);
    default: return (int)pick(w, 40);
    }
}

/* Element i of what `from` sends to `to` in this step. */
static unsigned value(struct worker *w, int from, int to, int i) {
    uint64_t state = (uint64_t)w->step << 24 ^ (uint64_t)w->number << 16 ^ (uint64_t)from << 8 ^ (uint64_t)to ^ seed << 40;
    return (unsigned)next(&state) + (unsigned)i * 2654435761u;
}

static void fill(struct worker *w, unsigned *buf, int n, int from, int to) {
    unsigned first = value(w, from, to, 0);
    for (int i = 0; i < n; i++) buf[i] = first + (unsigned)i * 2654435761u;
}

static void verify(struct worker *w, const unsigned *buf, int n, int from, int to) {
    unsigned first = value(w, from, to, 0);
    for (int i = 0; i < n; i++) EXPECT(buf[i] == first + (unsigned)i * 2654435761u);
}

static int after(int by) { return (rank + by) % size; }
static int before(int by) { return (rank + size - by % size) % size; }

static void messages(struct worker *w) {
    /* A receive from anybody must not match what a rank sends that is a step ahead: each step has a tag. */
    int n = length(w), by = size > 1 ? 1 + (int)pick(w, (unsigned)size - 1) : 0, tag = (int)(w->step % 20000);
    int to = after(by), from = before(by), flag, count, got;
    unsigned *out = w->out, *in = w->in;
    MPI_Status status;
    MPI_Message message;
    MPI_Request requests[2 * MOST_RANKS], one;
    MPI_Datatype type;
    fill(w, out, n, rank, to);
    switch (pick(w, 14)) {
    case 0:
        w->what = "sendrecv";
        DO(MPI_Sendrecv(out, n, MPI_UNSIGNED, to, tag, in, LARGEST, MPI_UNSIGNED, from, tag, w->link, &status));
        DO(MPI_Get_count(&status, MPI_UNSIGNED, &count));
        EXPECT(count == n && status.MPI_SOURCE == from && status.MPI_TAG == tag);
        break;
    case 1:
        w->what = "sendrecv on a communicator of all threads";
        DO(MPI_Sendrecv(out, n, MPI_UNSIGNED, to, w->number, in, LARGEST, MPI_UNSIGNED, from, w->number, shared, &status));
        EXPECT(status.MPI_SOURCE == from && status.MPI_TAG == w->number);
        break;
    case 2:
        w->what = "sendrecv_replace";
        DO(MPI_Sendrecv_replace(out, n, MPI_UNSIGNED, to, tag, from, tag, w->link, &status));
        memcpy(in, out, (size_t)n * sizeof *in);
        break;
    case 3:
        w->what = "isendrecv";
        DO(MPI_Isendrecv(out, n, MPI_UNSIGNED, to, tag, in, n, MPI_UNSIGNED, from, tag, w->link, &one));
        DO(MPI_Wait(&one, &status));
        EXPECT(status.MPI_SOURCE == from);
        break;
    case 4:
        w->what = "irecv, ssend";
        DO(MPI_Irecv(in, n, MPI_UNSIGNED, from, MPI_ANY_TAG, w->link, &one));
        DO(MPI_Ssend(out, n, MPI_UNSIGNED, to, tag, w->link));
        DO(MPI_Wait(&one, &status));
        EXPECT(status.MPI_TAG == tag);
        break;
    case 5:
        w->what = "flush_buffer, bsend, recv from anybody";
        /* The buffer has room for one of the longest. */
        DO(MPI_Comm_flush_buffer(w->link));
        DO(MPI_Bsend(out, n, MPI_UNSIGNED, to, tag, w->link));
        DO(MPI_Recv(in, n, MPI_UNSIGNED, MPI_ANY_SOURCE, tag, w->link, &status));
        EXPECT(status.MPI_SOURCE == from);
        break;
    case 6:
        w->what = "isend, probe, recv";
        DO(MPI_Isend(out, n, MPI_UNSIGNED, to, tag, w->link, &one));
        DO(MPI_Probe(MPI_ANY_SOURCE, tag, w->link, &status));
        DO(MPI_Get_count(&status, MPI_UNSIGNED, &count));
        EXPECT(count == n && status.MPI_SOURCE == from);
        DO(MPI_Recv(in, count, MPI_UNSIGNED, status.MPI_SOURCE, status.MPI_TAG, w->link, MPI_STATUS_IGNORE));
        DO(MPI_Wait(&one, MPI_STATUS_IGNORE));
        break;
    case 7:
        w->what = "issend, improbe, imrecv";
        DO(MPI_Issend(out, n, MPI_UNSIGNED, to, tag, w->link, &requests[0]));
        do DO(MPI_Improbe(from, tag, w->link, &flag, &message, &status));
        while (!flag);
        DO(MPI_Imrecv(in, n, MPI_UNSIGNED, &message, &requests[1]));
        DO(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        break;
    case 8:
        w->what = "persistent";
        DO(MPI_Send_init(out, n, MPI_UNSIGNED, to, tag, w->link, &requests[0]));
        DO(MPI_Recv_init(in, n, MPI_UNSIGNED, from, tag, w->link, &requests[1]));
        for (int i = 0; i < 3; i++) {
            memset(in, 0xff, (size_t)n * sizeof *in);
            DO(MPI_Startall(2, requests));
            DO(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
            verify(w, in, n, from, rank);
        }
        DO(MPI_Request_free(&requests[0]));
        DO(MPI_Request_free(&requests[1]));
        break;
    case 9:
        w->what = "a vector datatype";
        n /= 2;
        for (int i = n - 1; i >= 0; i--) out[2 * i] = out[i];
        DO(MPI_Type_vector(n, 1, 2, MPI_UNSIGNED, &type));
        DO(MPI_Type_commit(&type));
        DO(MPI_Isend(out, 1, type, to, tag, w->link, &one));
        DO(MPI_Type_free(&type));
        DO(MPI_Recv(in, n, MPI_UNSIGNED, from, tag, w->link, MPI_STATUS_IGNORE));
        DO(MPI_Wait(&one, MPI_STATUS_IGNORE));
        break;
    case 10:
        w->what = "cancel";
        DO(MPI_Irecv(in, LARGEST, MPI_UNSIGNED, from, 30000, w->link, &one));
        DO(MPI_Cancel(&one));
        DO(MPI_Wait(&one, &status));
        DO(MPI_Test_cancelled(&status, &flag));
        EXPECT(flag);
        return;
    case 11:
        w->what = "irecv, isend, test";
        DO(MPI_Irecv(in, LARGEST, MPI_UNSIGNED, MPI_ANY_SOURCE, tag, w->link, &requests[0]));
        DO(MPI_Isend(out, n, MPI_UNSIGNED, to, tag, w->link, &requests[1]));
        do DO(MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE));
        while (!flag);
        break;
    default: {
        w->what = "everyone to everyone";
        int most = LARGEST / MOST_RANKS;
        n %= most;
        for (int i = 0; i < size; i++) {
            int peer = after(i);
            DO(MPI_Irecv(in + peer * most, most, MPI_UNSIGNED, peer, tag, w->link, &requests[i]));
        }
        for (int i = 0; i < size; i++) {
            int peer = before(i);
            fill(w, out + peer * most, n, rank, peer);
            DO(MPI_Isend(out + peer * most, n, MPI_UNSIGNED, peer, tag, w->link, &requests[size + i]));
        }
        int how = (int)pick(w, 3), left = 2 * size, indices[2 * MOST_RANKS];
        while (left > 0) {
            if (how == 0) {
                DO(MPI_Waitany(2 * size, requests, &got, MPI_STATUS_IGNORE));
                EXPECT(got != MPI_UNDEFINED);
                left--;
            } else {
                DO((how == 1 ? MPI_Waitsome : MPI_Testsome)(2 * size, requests, &got, indices, MPI_STATUSES_IGNORE));
                left -= got;
            }
        }
        for (int peer = 0; peer < size; peer++) verify(w, in + peer * most, n, peer, rank);
        return;
    }
    }
    verify(w, in, n, from, rank);
}

/* Starts a collective in one of its three forms and completes it. */
#define COLLECTIVE(name, lower, ...)                                                               \
    do {                                                                                           \
        w->what = #name;                                                                           \
        switch (form) {                                                                            \
        case 0: DO(MPI_##name(__VA_ARGS__, w->all)); break;                                        \
        case 1:                                                                                    \
            w->what = "I" #lower;                                                                  \
            DO(MPI_I##lower(__VA_ARGS__, w->all, &request));                                       \
            /* Something else goes on meanwhile. */                                                \
            if (pick(w, 2)) {                                                                      \
                int token = 0;                                                                     \
                DO(MPI_Sendrecv_replace(&token, 1, MPI_INT, after(1), 30001, before(1), 30001, w->link, MPI_STATUS_IGNORE)); \
            }                                                                                      \
            DO(MPI_Wait(&request, MPI_STATUS_IGNORE));                                             \
            break;                                                                                 \
        default:                                                                                   \
            w->what = #name "_init";                                                               \
            DO(MPI_##name##_init(__VA_ARGS__, w->all, MPI_INFO_NULL, &request));                   \
            for (int again = 0; again < 2; again++) {                                              \
                DO(MPI_Start(&request));                                                           \
                DO(MPI_Wait(&request, MPI_STATUS_IGNORE));                                         \
            }                                                                                      \
            DO(MPI_Request_free(&request));                                                        \
        }                                                                                          \
    } while (0)

static void collectives(struct worker *w) {
    int most = LARGEST / MOST_RANKS, n = length(w) % most, root = (int)pick(w, (unsigned)size), form = (int)pick(w, 3);
    int counts[MOST_RANKS], displs[MOST_RANKS], outs[MOST_RANKS], to[MOST_RANKS];
    unsigned *out = w->out, *in = w->in;
    MPI_Request request;
    /* Parts of different lengths: the one of `i` to `j` has (i + 2 j + n) mod most elements. */
#define PART(i, j) (((i) + 2 * (j) + n) % most)
    switch (pick(w, 15)) {
    case 0:
        w->what = "barrier";
        DO(MPI_Barrier(w->all));
        break;
    case 1:
        w->what = "ibarrier";
        DO(MPI_Ibarrier(w->all, &request));
        DO(MPI_Wait(&request, MPI_STATUS_IGNORE));
        break;
    case 2:
        if (rank == root) fill(w, in, n, root, 0);
        COLLECTIVE(Bcast, bcast, in, n, MPI_UNSIGNED, root);
        verify(w, in, n, root, 0);
        break;
    case 3:
        fill(w, out, n, rank, root);
        COLLECTIVE(Gather, gather, out, n, MPI_UNSIGNED, in, n, MPI_UNSIGNED, root);
        if (rank == root)
            for (int i = 0; i < size; i++) verify(w, in + i * n, n, i, root);
        break;
    case 4:
        fill(w, out, PART(rank, 0), rank, root);
        for (int i = 0; i < size; i++) counts[i] = PART(i, 0), displs[i] = i * most;
        COLLECTIVE(Gatherv, gatherv, out, PART(rank, 0), MPI_UNSIGNED, in, counts, displs, MPI_UNSIGNED, root);
        if (rank == root)
            for (int i = 0; i < size; i++) verify(w, in + displs[i], counts[i], i, root);
        break;
    case 5:
        if (rank == root)
            for (int i = 0; i < size; i++) fill(w, out + i * n, n, root, i);
        COLLECTIVE(Scatter, scatter, out, n, MPI_UNSIGNED, in, n, MPI_UNSIGNED, root);
        verify(w, in, n, root, rank);
        break;
    case 6:
        for (int i = 0; i < size; i++) {
            counts[i] = PART(0, i), displs[i] = i * most;
            if (rank == root) fill(w, out + displs[i], counts[i], root, i);
        }
        COLLECTIVE(Scatterv, scatterv, out, counts, displs, MPI_UNSIGNED, in, counts[rank], MPI_UNSIGNED, root);
        verify(w, in, counts[rank], root, rank);
        break;
    case 7:
        fill(w, out, n, rank, 0);
        COLLECTIVE(Allgather, allgather, out, n, MPI_UNSIGNED, in, n, MPI_UNSIGNED);
        for (int i = 0; i < size; i++) verify(w, in + i * n, n, i, 0);
        break;
    case 8:
        fill(w, out, PART(rank, 0), rank, 0);
        for (int i = 0; i < size; i++) counts[i] = PART(i, 0), displs[i] = i * most;
        COLLECTIVE(Allgatherv, allgatherv, out, counts[rank], MPI_UNSIGNED, in, counts, displs, MPI_UNSIGNED);
        for (int i = 0; i < size; i++) verify(w, in + displs[i], counts[i], i, 0);
        break;
    case 9:
        for (int i = 0; i < size; i++) fill(w, out + i * n, n, rank, i);
        COLLECTIVE(Alltoall, alltoall, out, n, MPI_UNSIGNED, in, n, MPI_UNSIGNED);
        for (int i = 0; i < size; i++) verify(w, in + i * n, n, i, rank);
        break;
    case 10:
        for (int i = 0; i < size; i++) {
            outs[i] = PART(rank, i), counts[i] = PART(i, rank), to[i] = displs[i] = i * most;
            fill(w, out + to[i], outs[i], rank, i);
        }
        COLLECTIVE(Alltoallv, alltoallv, out, outs, to, MPI_UNSIGNED, in, counts, displs, MPI_UNSIGNED);
        for (int i = 0; i < size; i++) verify(w, in + displs[i], counts[i], i, rank);
        break;
    case 11: {
        fill(w, out, n, rank, 0);
        int everywhere = (int)pick(w, 2);
        if (everywhere) COLLECTIVE(Allreduce, allreduce, out, in, n, MPI_UNSIGNED, MPI_SUM);
        else COLLECTIVE(Reduce, reduce, out, in, n, MPI_UNSIGNED, MPI_SUM, root);
        if (!everywhere && rank != root) break;
        for (int i = 0; i < n; i++) {
            unsigned sum = 0;
            for (int from = 0; from < size; from++) sum += value(w, from, 0, i);
            EXPECT(in[i] == sum);
        }
        break;
    }
    case 12:
        for (int i = 0; i < size; i++) fill(w, out + i * n, n, rank, i);
        COLLECTIVE(Reduce_scatter_block, reduce_scatter_block, out, in, n, MPI_UNSIGNED, MPI_BXOR);
        for (int i = 0; i < n; i++) {
            unsigned all = 0;
            for (int from = 0; from < size; from++) all ^= value(w, from, rank, i);
            EXPECT(in[i] == all);
        }
        break;
    case 13:
        fill(w, out, n, rank, 0);
        COLLECTIVE(Scan, scan, out, in, n, MPI_UNSIGNED, MPI_SUM);
        for (int i = 0; i < n; i++) {
            unsigned sum = 0;
            for (int from = 0; from <= rank; from++) sum += value(w, from, 0, i);
            EXPECT(in[i] == sum);
        }
        break;
    default: {
        /* Communicators come and go, in all threads at once. */
        MPI_Comm new;
        int sum = 0, one = 1, halves = 0, members = 0;
        switch (pick(w, 16)) {
        case 0:
            w->what = "dup";
            DO(MPI_Comm_dup(w->all, &new));
            break;
        case 1:
            w->what = "idup";
            DO(MPI_Comm_idup(w->all, &new, &request));
            DO(MPI_Wait(&request, MPI_STATUS_IGNORE));
            break;
        case 2:
            w->what = "split";
            DO(MPI_Comm_split(w->all, rank % 2, -rank, &new));
            halves = 1;
            break;
        default: return;
        }
        for (int i = 0; i < size; i++) members += !halves || i % 2 == rank % 2;
        DO(MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, new, &request));
        DO(MPI_Wait(&request, MPI_STATUS_IGNORE));
        EXPECT(sum == members);
        DO(MPI_Barrier(new));
        DO(MPI_Comm_free(&new));
    }
    }
}

static void *work(void *argument) {
    struct worker *w = argument;
    size_t room = LARGEST * sizeof(unsigned);
    int bsend = (int)room + MPI_BSEND_OVERHEAD, go = 1;
    void *buffer = malloc((size_t)bsend);
    w->out = malloc(room);
    w->in = malloc(room);
    EXPECT(buffer && w->out && w->in);
    DO(MPI_Comm_attach_buffer(w->link, buffer, bsend));
    double start = MPI_Wtime();
    while (go) {
        for (int i = 0; i < 20; i++) {
            w->step++;
            total++;
            if (pick(w, 2)) messages(w);
            else collectives(w);
        }
        w->what = "going on";
        go = MPI_Wtime() - start < seconds;
        DO(MPI_Bcast(&go, 1, MPI_INT, 0, w->all));
    }
    w->what = "the end";
    DO(MPI_Comm_detach_buffer(w->link, &buffer, &bsend));
    free(buffer);
    free(w->out);
    free(w->in);
    w->what = "over";
    return NULL;
}

/* Says where everybody is when nothing moves any more. */
static void *watch(void *argument) {
    int threads = *(int *)argument;
    long last = -1, since = 0;
    for (;;) {
        sleep(1);
        long now = total;
        since = now == last ? since + 1 : 0;
        last = now;
        if (since < STALLED) continue;
        for (int i = 0; i < threads; i++)
            fprintf(stderr, "rank %d, thread %d: step %ld, %s\n", rank, i, (long)workers[i].step, (const char *)workers[i].what);
        fflush(stderr);
        sleep(5);
        _exit(97);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int provided, threads = argc > 3 ? atoi(argv[3]) : 8;
    pthread_t ids[MOST_THREADS], watcher;
    seconds = argc > 1 ? atof(argv[1]) : 5;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
    CHECK(provided == MPI_THREAD_MULTIPLE);
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    CHECK(size <= MOST_RANKS && threads <= MOST_THREADS);
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &shared));
    for (int i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        w->number = i;
        w->random = seed * 1000 + (uint64_t)i;
        w->what = "the beginning";
        OK(MPI_Comm_dup(MPI_COMM_WORLD, &w->link));
        OK(MPI_Comm_dup(MPI_COMM_WORLD, &w->all));
    }
    pthread_create(&watcher, NULL, watch, &threads);
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, &workers[i]);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < threads; i++) {
        OK(MPI_Comm_free(&workers[i].link));
        OK(MPI_Comm_free(&workers[i].all));
    }
    OK(MPI_Comm_free(&shared));
    if (rank == 0) printf("%ld steps in %d threads of each of %d ranks, seed %llu\n", (long)total, threads, size, (unsigned long long)seed);
    OK(MPI_Finalize());
    return 0;
}
