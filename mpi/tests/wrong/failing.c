/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Traffic of every kind, in which a step fails by order. Each call gives the right bytes or an error of a class, and
   nothing waits for ever. An error ends the rank: what its peers wait for ends with an error, too. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG 400000

static const char *at = "";
static int rank, size;
static unsigned char out[LONG], in[LONG];

/* An error of a class is a good end, with words to it. */
static void checked(int code, const char *what) {
    int class = -1, len = 0;
    char text[MPI_MAX_ERROR_STRING];
    if (code == MPI_SUCCESS) {
        return;
    }
    if (MPI_Error_class(code, &class) != MPI_SUCCESS || MPI_Error_string(code, text, &len) != MPI_SUCCESS || len == 0) {
        fprintf(stderr, "rank %d: %s: %s: %d is no error code\n", rank, at, what, code);
        _Exit(99);
    }
    fprintf(stderr, "rank %d: %s: %s: class %d: %s\n", rank, at, what, class, text);
    MPI_Abort(MPI_COMM_WORLD, 7);
}

#define DO(call) checked((call), #call)

static void filled(int len, int from) {
    memset(in, 0, sizeof in);
    for (int i = 0; i < len; i++) {
        out[i] = (unsigned char)(from + i);
    }
}

static void whole(int len, int from) {
    for (int i = 0; i < len; i++) {
        if (in[i] != (unsigned char)(from + i)) {
            fprintf(stderr, "rank %d: %s: byte %d of %d is %d\n", rank, at, i, len, in[i]);
            _Exit(99);
        }
    }
}

static void point_to_point(MPI_Comm comm) {
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    static const int lengths[] = {0, 8, 300, 9000, 70000, LONG};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int len = lengths[i], flag = 0;
        MPI_Request request[2];
        MPI_Status status;
        MPI_Message message;
        at = "sendrecv";
        filled(len, rank);
        DO(MPI_Sendrecv(out, len, MPI_BYTE, to, 1, in, len, MPI_BYTE, from, 1, comm, MPI_STATUS_IGNORE));
        whole(len, from);
        at = "synchronous";
        filled(len, rank + 1);
        DO(MPI_Irecv(in, len, MPI_BYTE, from, 2, comm, &request[0]));
        DO(MPI_Issend(out, len, MPI_BYTE, to, 2, comm, &request[1]));
        DO(MPI_Waitall(2, request, MPI_STATUSES_IGNORE));
        whole(len, from + 1);
        at = "probed";
        filled(len, rank + 2);
        DO(MPI_Isend(out, len, MPI_BYTE, to, 3, comm, &request[0]));
        DO(MPI_Mprobe(from, 3, comm, &message, &status));
        DO(MPI_Mrecv(in, len, MPI_BYTE, &message, &status));
        DO(MPI_Wait(&request[0], MPI_STATUS_IGNORE));
        whole(len, from + 2);
        at = "persistent";
        filled(len, rank + 3);
        DO(MPI_Recv_init(in, len, MPI_BYTE, from, 4, comm, &request[0]));
        DO(MPI_Send_init(out, len, MPI_BYTE, to, 4, comm, &request[1]));
        for (int turn = 0; turn < 2; turn++) {
            DO(MPI_Startall(2, request));
            DO(MPI_Waitall(2, request, MPI_STATUSES_IGNORE));
            whole(len, from + 3);
        }
        DO(MPI_Request_free(&request[0]));
        DO(MPI_Request_free(&request[1]));
        at = "cancelled";
        DO(MPI_Irecv(in, len, MPI_BYTE, from, 99, comm, &request[0]));
        DO(MPI_Cancel(&request[0]));
        DO(MPI_Wait(&request[0], &status));
        DO(MPI_Test_cancelled(&status, &flag));
    }
}

static void buffered(MPI_Comm comm) {
    static char room[4 * (9000 + MPI_BSEND_OVERHEAD)];
    int to = (rank + 1) % size, from = (rank + size - 1) % size, had;
    void *buffer;
    at = "buffered";
    filled(9000, rank);
    DO(MPI_Buffer_attach(room, sizeof room));
    DO(MPI_Bsend(out, 9000, MPI_BYTE, to, 5, comm));
    DO(MPI_Recv(in, 9000, MPI_BYTE, from, 5, comm, MPI_STATUS_IGNORE));
    whole(9000, from);
    DO(MPI_Buffer_detach(&buffer, &had));
}

static void collectives(MPI_Comm comm) {
    static const int lengths[] = {8, 3000, 100000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int len = lengths[i];
        MPI_Request request;
        at = "barrier";
        DO(MPI_Barrier(comm));
        at = "broadcast";
        filled(len, 0);
        memcpy(in, out, rank == 0 ? (size_t)len : 0);
        DO(MPI_Bcast(in, len, MPI_BYTE, 0, comm));
        whole(len, 0);
        at = "reduction";
        filled(len, rank);
        DO(MPI_Allreduce(out, in, len, MPI_UNSIGNED_CHAR, MPI_MIN, comm));
        at = "gather";
        filled(len, rank);
        DO(MPI_Allgather(out, len, MPI_BYTE, in, len, MPI_BYTE, comm));
        whole(len, 0);
        at = "nonblocking";
        DO(MPI_Ialltoall(out, len / size, MPI_BYTE, in, len / size, MPI_BYTE, comm, &request));
        DO(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

static void scattered(MPI_Comm comm) {
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Datatype type;
    at = "scattered";
    filled(LONG, rank);
    DO(MPI_Type_vector(LONG / 8, 4, 8, MPI_BYTE, &type));
    DO(MPI_Type_commit(&type));
    DO(MPI_Sendrecv(out, 1, type, to, 6, in, 1, type, from, 6, comm, MPI_STATUS_IGNORE));
    DO(MPI_Type_free(&type));
    for (int i = 0; i < LONG; i++) {
        if (in[i] != (i % 8 < 4 ? (unsigned char)(from + i) : 0)) {
            fprintf(stderr, "rank %d: %s: byte %d is %d\n", rank, at, i, in[i]);
            _Exit(99);
        }
    }
}

int main(int argc, char **argv) {
    MPI_Comm dup, half;
    int code = MPI_Init(&argc, &argv);
    if (code != MPI_SUCCESS) {
        return 7;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    point_to_point(MPI_COMM_WORLD);
    buffered(MPI_COMM_WORLD);
    collectives(MPI_COMM_WORLD);
    at = "communicators";
    DO(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    DO(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half));
    collectives(dup);
    DO(MPI_Barrier(half));
    scattered(dup);
    DO(MPI_Comm_free(&half));
    DO(MPI_Comm_free(&dup));
    MPI_Finalize();
    return 0;
}
