/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A thread frees a communicator on which another one waits: what waits completes. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static int rank;
static MPI_Comm comm;
static char kind;
static atomic_int waiter;

static void part(MPI_Comm on) {
    enum { N = 1000 };
    static int in[N], out[N];
    MPI_Message message;
    MPI_Status status;
    MPI_Request request;
    MPI_Comm made;
    for (int i = 0; i < N; i++) in[i] = i + rank;
    switch (kind) {
    case 'b': OK(MPI_Barrier(on)); break;
    case 'a':
        OK(MPI_Allreduce(in, out, N, MPI_INT, MPI_SUM, on));
        for (int i = 0; i < N; i++) CHECK(out[i] == 2 * i + 1);
        break;
    case 'v':
        OK(MPI_Iallreduce(in, out, N, MPI_INT, MPI_SUM, on, &request));
        OK(MPI_Wait(&request, &status));
        break;
    case 'c':
        OK(MPI_Comm_split(on, 0, -rank, &made));
        OK(MPI_Comm_free(&made));
        break;
    case 'd':
        OK(MPI_Comm_dup(on, &made));
        OK(MPI_Comm_free(&made));
        break;
    case 'x':
        OK(MPI_Sendrecv(in, N, MPI_INT, 1 - rank, 1, out, N, MPI_INT, 1 - rank, 1, on, &status));
        CHECK(out[N - 1] == N - rank);
        break;
    case 's':
        OK(rank == 0 ? MPI_Ssend(in, N, MPI_INT, 1, 1, on) : MPI_Recv(out, N, MPI_INT, 0, 1, on, &status));
        break;
    case 'p': case 'm': case 'r':
        if (rank == 1) OK(MPI_Send(in, N, MPI_INT, 0, 1, on));
        else if (kind == 'p') OK(MPI_Probe(1, 1, on, &status));
        else if (kind == 'r') OK(MPI_Recv(out, N, MPI_INT, 1, 1, on, &status));
        else {
            OK(MPI_Mprobe(MPI_ANY_SOURCE, 1, on, &message, &status));
            OK(MPI_Mrecv(out, N, MPI_INT, &message, &status));
        }
        break;
    }
}

static void *waits(void *unused) {
    waiter = gettid();
    part(comm);
    return unused;
}

/*
 * Between its word and its call it does nothing that could sleep: a thread that sleeps is in the
 * call.
 */
static void until_it_sleeps(void) {
    char path[64], line[512];
    while (!waiter) usleep(1000);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)waiter);
    for (;;) {
        FILE *stat = fopen(path, "r");
        CHECK(stat && fgets(line, sizeof line, stat));
        fclose(stat);
        if (strrchr(line, ')')[2] == 'S') return;
        usleep(1000);
    }
}

int main(int argc, char **argv) {
    int level;
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
    CHECK(level == MPI_THREAD_MULTIPLE);
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    for (const char *next = "bavcdspmrx"; *next; next++) {
        kind = *next;
        OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        if (rank == 0) {
            pthread_t thread;
            MPI_Comm same = comm;
            waiter = 0;
            CHECK(!pthread_create(&thread, NULL, waits, NULL));
            until_it_sleeps();
            OK(MPI_Comm_free(&same));
            /* What was given back is given out again, and written. */
            static void *blocks[2000];
            for (int i = 0; i < 2000; i++) blocks[i] = memset(malloc(16 + i), 0xaa, 16 + i);
            OK(MPI_Send(NULL, 0, MPI_INT, 1, 9, MPI_COMM_WORLD));
            CHECK(!pthread_join(thread, NULL));
            for (int i = 0; i < 2000; i++) free(blocks[i]);
        } else {
            OK(MPI_Recv(NULL, 0, MPI_INT, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            part(comm);
            OK(MPI_Comm_free(&comm));
        }
        OK(MPI_Barrier(MPI_COMM_WORLD));
    }
    OK(MPI_Finalize());
    return 0;
}
