/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Rank 2 aborts the job while rank 1 waits for rank 0, which lives, in every way there is: each wait ends with an error. `aborted` waits in one
   after the other, `aborted threads` in all at a time. With `dies` rank 0 is killed instead. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { LONG = 4 << 20, KINDS = 24 };

static MPI_Comm world, comms[KINDS];
static MPI_Request held[KINDS][2];
static char *big, *sink;
static int value[KINDS][2];

/* What is started before the abort. */
static void start(int kind) {
    MPI_Comm comm = comms[kind];
    MPI_Request *r = held[kind];
    int *v = value[kind];
    switch (kind) {
    case 0: OK(MPI_Irecv(v, 1, MPI_INT, 0, 100, world, r)); break;
    case 1: OK(MPI_Irecv(v, 1, MPI_INT, MPI_ANY_SOURCE, 101, world, r)); break;
    case 2: OK(MPI_Irecv(v, 1, MPI_INT, 0, MPI_ANY_TAG, comm, r)); break;
    case 3: OK(MPI_Issend(v, 1, MPI_INT, 0, 3, comm, r)); break;
    case 4: OK(MPI_Isend(big, LONG, MPI_BYTE, 0, 4, comm, r)); break;
    case 5: OK(MPI_Ibarrier(comm, r)); break;
    case 6: OK(MPI_Iallreduce(v, v + 1, 1, MPI_INT, MPI_SUM, comm, r)); break;
    case 7:
        OK(MPI_Recv_init(v, 1, MPI_INT, 0, 7, comm, r));
        OK(MPI_Start(r));
        break;
    case 8: OK(MPI_Isendrecv(big, LONG, MPI_BYTE, 0, 8, v, 1, MPI_INT, 0, 8, comm, r)); break;
    case 9: case 10: case 11:
        OK(MPI_Irecv(v, 1, MPI_INT, 0, 100 + kind, world, r));
        OK(MPI_Irecv(v + 1, 1, MPI_INT, 0, 200 + kind, world, r + 1));
        break;
    case 12: OK(MPI_Irecv(v, 1, MPI_INT, 0, 112, world, r)); break;
    }
}

static int waits(int kind) {
    MPI_Comm comm = comms[kind], made;
    MPI_Request *r = held[kind];
    MPI_Message message;
    MPI_Status status, both[2];
    int *v = value[kind], code = 0, flag = 0, index;
    switch (kind) {
    case 9: return MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    case 10: return MPI_Waitany(2, r, &index, &status);
    case 11: return MPI_Waitsome(2, r, &flag, (int[2]){0}, both);
    case 12: while (!flag && !code) code = MPI_Test(r, &flag, &status); return code;
    case 13: return MPI_Recv(v, 1, MPI_INT, 0, 13, world, &status);
    case 14: return MPI_Recv(v, 1, MPI_INT, MPI_ANY_SOURCE, 14, comm, &status);
    case 15: return MPI_Probe(0, 15, comm, &status);
    case 16: return MPI_Mprobe(MPI_ANY_SOURCE, 16, comm, &message, &status);
    case 17: while (!flag && !code) code = MPI_Iprobe(0, 17, comm, &flag, &status); return code;
    case 18: return MPI_Barrier(comm);
    case 19: return MPI_Allreduce(v, v + 1, 1, MPI_INT, MPI_SUM, comm);
    case 20: return MPI_Comm_dup(comm, &made);
    case 21: return MPI_Ssend(v, 1, MPI_INT, 0, 21, comm);
    case 22: return MPI_Sendrecv(big, LONG, MPI_BYTE, 0, 22, sink, LONG, MPI_BYTE, 0, 22, comm, &status);
    case 23: return MPI_Bcast(sink, LONG, MPI_BYTE, 0, comm);
    default: return MPI_Wait(r, &status);
    }
}

static void *one(void *kind) {
    int number = (int)(size_t)kind;
    CHECK(waits(number) != MPI_SUCCESS);
    printf("wait %d ended\n", number);
    fflush(stdout);
    return NULL;
}

int main(int argc, char **argv) {
    int rank, level, threads = argc > 1 && !strcmp(argv[1], "threads"), dies = argc > 2;
    int ender = dies ? 0 : 2, idle = 2 - ender;
    pthread_t thread[KINDS];
    OK(MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    world = MPI_COMM_WORLD;
    OK(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    for (int i = 0; i < KINDS; i++) OK(MPI_Comm_dup(world, &comms[i]));
    CHECK((big = calloc(1, LONG)) && (sink = calloc(1, LONG)));
    /* The launcher asks ranks to end, and gives them time. */
    signal(SIGTERM, SIG_IGN);
    int pid = getpid();
    if (rank == idle) {
        OK(MPI_Send(&pid, 1, MPI_INT, 1, 99, world));
        for (;;) pause();
    }
    if (rank == ender) {
        OK(MPI_Recv(NULL, 0, MPI_BYTE, 1, 99, world, MPI_STATUS_IGNORE));
        if (dies) kill(pid, SIGKILL);
        MPI_Abort(world, 5);
    }
    OK(MPI_Recv(&pid, 1, MPI_INT, idle, 99, world, MPI_STATUS_IGNORE));
    for (int i = 0; i < KINDS; i++) start(i);
    OK(MPI_Send(NULL, 0, MPI_BYTE, ender, 99, world));
    for (int i = 0; i < KINDS; i++) {
        void *kind = (void *)(size_t)i;
        if (!threads) one(kind);
        if (threads) CHECK(!pthread_create(&thread[i], NULL, one, kind));
    }
    for (int i = 0; threads && i < KINDS; i++) CHECK(!pthread_join(thread[i], NULL));
    printf("all ended\n");
    fflush(stdout);
    kill(pid, SIGKILL);
    _exit(0);
}
