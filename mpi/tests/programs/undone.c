/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A call that fails leaves nothing behind: no receive that still writes, no send that still reads, no message that is lost. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <signal.h>
#include <unistd.h>

enum { BYTES = 3000, LONG = 3 << 20, BLOCKS = 64 };

static int rank, size;
static MPI_Datatype spread;

/* Memory as the library had it just before, if it gave it back: the allocator serves the same sizes again. */
static unsigned char *blocks[BLOCKS];

static void take(size_t bytes) {
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((blocks[i] = malloc(bytes)));
        memset(blocks[i], 0x5a, bytes);
    }
}

static void untouched(size_t bytes) {
    for (int i = 0; i < BLOCKS; i++) {
        for (size_t at = 0; at < bytes; at++) CHECK(blocks[i][at] == 0x5a);
        free(blocks[i]);
    }
}

static void tell(int to) { OK(MPI_Send(NULL, 0, MPI_BYTE, to, 99, MPI_COMM_WORLD)); }

static void hear(int from) {
    OK(MPI_Recv(NULL, 0, MPI_BYTE, from, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

/* What was to be received by a call that failed is there for another one. */
static void receive(MPI_Comm comm, int tag, unsigned char mark) {
    static unsigned char got[BYTES];
    MPI_Status status;
    int count;
    OK(MPI_Recv(got, BYTES, MPI_BYTE, 1, tag, comm, &status));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == BYTES);
    for (int i = 0; i < BYTES; i++) CHECK(got[i] == mark);
}

static void send(MPI_Comm comm, int tag, unsigned char mark) {
    static unsigned char bytes[BYTES];
    memset(bytes, mark, BYTES);
    OK(MPI_Send(bytes, BYTES, MPI_BYTE, 0, tag, comm));
}

/* Rank 0 makes a failing call that had a receive from rank 1 in it, by `call`; then the message comes. */
#define FAILS(comm, tag, call)                                                                     \
    do {                                                                                           \
        if (rank == 0) {                                                                           \
            memset(program, 0x33, 2 * BYTES);                                                      \
            CHECK((call) != MPI_SUCCESS);                                                          \
            take(BYTES);                                                                           \
            tell(1);                                                                               \
            hear(1);                                                                               \
            receive(comm, tag, 0xee);                                                              \
            for (int i = 0; i < 2 * BYTES; i++) CHECK(program[i] == 0x33);                         \
            untouched(BYTES);                                                                      \
        } else if (rank == 1) {                                                                    \
            hear(0);                                                                               \
            send(comm, tag, 0xee);                                                                 \
            tell(0);                                                                               \
        }                                                                                          \
    } while (0)

static void arguments(void) {
    static unsigned char program[2 * BYTES];
    MPI_Comm dup;
    MPI_Request request = MPI_REQUEST_NULL;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    for (int i = 0; i < 2; i++) {
        MPI_Comm comm = i ? dup : MPI_COMM_WORLD;
        /* A bad send beside a receive, into a packed form and into the program's memory. */
        FAILS(comm, 1, MPI_Isendrecv(program, -1, MPI_BYTE, 1, 7, program, 1, spread, 1, 1, comm, &request));
        FAILS(comm, 2, MPI_Isendrecv(program, -1, MPI_BYTE, 1, 7, program, BYTES, MPI_BYTE, 1, 2, comm, &request));
        FAILS(comm, 3, MPI_Isendrecv(NULL, 1, MPI_BYTE, 1, 7, program, BYTES, MPI_BYTE, 1, 3, comm, &request));
        FAILS(comm, 4, MPI_Isendrecv(program, 1, MPI_DATATYPE_NULL, 1, 7, program, 1, spread, 1, 4, comm, &request));
        FAILS(comm, 5, MPI_Sendrecv(program, -1, MPI_BYTE, 1, 7, program, 1, spread, 1, 5, comm, MPI_STATUS_IGNORE));
        FAILS(comm, 6, MPI_Sendrecv(NULL, 1, MPI_BYTE, 1, 7, program, BYTES, MPI_BYTE, 1, 6, comm, MPI_STATUS_IGNORE));
        /* No place for the request. */
        FAILS(comm, 7, MPI_Irecv(program, 1, spread, 1, 7, comm, NULL));
        FAILS(comm, 8, MPI_Irecv(program, BYTES, MPI_BYTE, 1, 8, comm, NULL));
        FAILS(comm, 9, MPI_Isendrecv_replace(program, 1, spread, size, 0, 1, 9, comm, &request));
        FAILS(comm, 10, MPI_Isendrecv_replace(program, 1, spread, MPI_PROC_NULL, 0, 1, 10, comm, NULL));
        CHECK(request == MPI_REQUEST_NULL);
        /* A bad receive beside a send, which could go at once. */
        FAILS(comm, 11, MPI_Sendrecv(program, 1, MPI_BYTE, 1, 7, program, -1, MPI_BYTE, 1, 11, comm, MPI_STATUS_IGNORE));
        FAILS(comm, 12, MPI_Sendrecv(program, 1, MPI_BYTE, 1, 7, program, 1, MPI_DATATYPE_NULL, 1, 12, comm, MPI_STATUS_IGNORE));
        FAILS(comm, 13, MPI_Sendrecv(program, 1, MPI_BYTE, 1, 7, program, 1, MPI_BYTE, 1, -5, comm, MPI_STATUS_IGNORE));
        FAILS(comm, 14, MPI_Sendrecv(program, 1, MPI_BYTE, 1, 7, program, 1, MPI_BYTE, size, 14, comm, MPI_STATUS_IGNORE));
        FAILS(comm, 15, MPI_Sendrecv(program, 1, MPI_BYTE, 1, 7, NULL, BYTES, MPI_BYTE, 1, 15, comm, MPI_STATUS_IGNORE));
        if (rank == 1) {
            int flag = 1;
            OK(MPI_Iprobe(0, 7, comm, &flag, MPI_STATUS_IGNORE));
            CHECK(!flag);
        }
    }
    OK(MPI_Comm_free(&dup));
}

/* The table of requests is full: what cannot have a handle is not started. ONECOPY_JOB_LIMIT makes it short. */
static void full(void) {
    static unsigned char program[2 * BYTES];
    static MPI_Request held[1 << 16];
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Message message;
    MPI_Comm dup, other;
    int count = 0, flag = 1;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    OK(MPI_Comm_set_errhandler(dup, MPI_ERRORS_RETURN));
    if (rank == 0) {
        while (count < 1 << 16 && !MPI_Irecv(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, dup, &held[count])) count++;
        CHECK(count > 0 && count < 1 << 16);
    }
    FAILS(dup, 1, MPI_Irecv(program, 1, spread, 1, 1, dup, &request));
    FAILS(dup, 2, MPI_Irecv(program, BYTES, MPI_BYTE, 1, 2, dup, &request));
    FAILS(dup, 3, MPI_Isendrecv_replace(program, 1, spread, MPI_PROC_NULL, 0, 1, 3, dup, &request));
    FAILS(dup, 4, MPI_Isendrecv(program, 1, MPI_BYTE, MPI_PROC_NULL, 0, program, 1, spread, 1, 4, dup, &request));
    FAILS(dup, 5, MPI_Recv_init(program, BYTES, MPI_BYTE, 1, 5, dup, &request));
    if (rank == 0) {
        CHECK(request == MPI_REQUEST_NULL);
        /* A message that was probed stays to be received. */
        static unsigned char got[BYTES];
        tell(1);
        OK(MPI_Mprobe(1, 6, dup, &message, MPI_STATUS_IGNORE));
        CHECK(MPI_Imrecv(got, BYTES, MPI_BYTE, &message, &request) != MPI_SUCCESS);
        CHECK(message != MPI_MESSAGE_NULL);
        OK(MPI_Mrecv(got, BYTES, MPI_BYTE, &message, MPI_STATUS_IGNORE));
        CHECK(got[0] == 0x77 && got[BYTES - 1] == 0x77);
        /* A collective: nobody takes part. */
        CHECK(MPI_Ibarrier(dup, &request) != MPI_SUCCESS);
        CHECK(MPI_Comm_idup(dup, &other, &request) != MPI_SUCCESS);
        OK(MPI_Waitall(count, held, MPI_STATUSES_IGNORE));
    } else if (rank == 1) {
        hear(0);
        send(dup, 6, 0x77);
    }
    /* There is room again. */
    OK(MPI_Comm_idup(dup, &other, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Ibarrier(other, &request));
    OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Comm_free(&other));
    OK(MPI_Comm_free(&dup));
}

/* The last rank dies; the others are neighbours of it and of each other. */
static void dead(void) {
    int last = size - 1, peers[2] = {1 - rank, last};
    static unsigned char in[2 * 2 * BYTES], out[2 * 2 * BYTES];
    MPI_Comm ring, dup;
    MPI_Request request = MPI_REQUEST_NULL, later;
    MPI_Status status;
    CHECK(size == 3);
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    if (rank == last) peers[0] = 0, peers[1] = 1;
    OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, peers, MPI_UNWEIGHTED, 2, peers, MPI_UNWEIGHTED,
                                      MPI_INFO_NULL, 0, &ring));
    OK(MPI_Comm_set_errhandler(ring, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(dup, MPI_ERRORS_RETURN));
    if (rank == last) kill(getpid(), SIGKILL);
    CHECK(MPI_Recv(in, 1, MPI_BYTE, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    /* From the dead, to the living: what was a copy lives as long as it is read, or is never announced. */
    unsigned char *buffer = malloc(LONG);
    CHECK(buffer);
    memset(buffer, 0x11, LONG);
    if (rank == 0) {
        CHECK(MPI_Sendrecv_replace(buffer, LONG, MPI_BYTE, 1, 5, last, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE) != 0);
        CHECK(MPI_Isendrecv_replace(buffer, LONG, MPI_BYTE, 1, 5, last, 5, MPI_COMM_WORLD, &request) != 0);
        take(LONG);
        tell(1);
        memset(buffer, 0x22, LONG);
        OK(MPI_Send(buffer, LONG, MPI_BYTE, 1, 5, MPI_COMM_WORLD));
        untouched(LONG);
    } else {
        hear(0);
        /* Each message that comes is whole; the last one is the one of the call that did not fail. */
        do {
            OK(MPI_Recv(buffer, LONG, MPI_BYTE, 0, 5, MPI_COMM_WORLD, &status));
            CHECK(buffer[0] == 0x11 || buffer[0] == 0x22);
            for (int at = 0; at < LONG; at++) CHECK(buffer[at] == buffer[0]);
        } while (buffer[0] != 0x22);
    }
    /* From the living, to the dead: the receive is gone. */
    static unsigned char program[2 * BYTES];
    FAILS(dup, 6, MPI_Sendrecv_replace(program, 1, spread, last, 6, 1, 6, dup, MPI_STATUS_IGNORE));
    FAILS(dup, 7, MPI_Isendrecv(program, BYTES, MPI_BYTE, last, 7, program, 1, spread, 1, 7, dup, &request));
    /* A neighbourhood. The living get what they send each other; the error is told at the end, or before. */
    for (int round = 0; round < 4; round++) {
        int code = MPI_SUCCESS;
        memset(in, 0x33, sizeof in);
        memset(out, 0xee, sizeof out);
        if (rank == 1) hear(0);
        later = MPI_REQUEST_NULL;
        code = MPI_Ineighbor_alltoall(out, 1, spread, in, 1, spread, ring, &later);
        if (rank == 0) {
            take(BYTES);
            tell(1);
        }
        if (code == MPI_SUCCESS) code = MPI_Wait(&later, MPI_STATUS_IGNORE);
        CHECK(code != MPI_SUCCESS);
        for (size_t at = 0; at < 2 * BYTES; at++) CHECK(in[at] == (at % 2 ? 0x33 : 0xee));
        if (rank == 0) {
            hear(1);
            untouched(BYTES);
        } else {
            tell(0);
        }
    }
    CHECK(MPI_Neighbor_alltoall(out, 1, spread, in, 1, spread, ring) != MPI_SUCCESS);
    free(buffer);
    /* A rank that waits for the dead at the end of the job hears of it, and goes. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    printf("rank %d is well\n", rank);
    fflush(stdout);
    MPI_Finalize();
    exit(0);
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    /* Every second byte: such a message is received in packed form. */
    OK(MPI_Type_vector(BYTES, 1, 2, MPI_BYTE, &spread));
    OK(MPI_Type_commit(&spread));
    if (argc > 1 && !strcmp(argv[1], "dead")) dead();
    if (argc > 1 && !strcmp(argv[1], "full")) full();
    if (argc == 1) arguments();
    OK(MPI_Type_free(&spread));
    OK(MPI_Finalize());
    return 0;
}
