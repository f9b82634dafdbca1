/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages and collectives on buffers of every kind of memory, on either side. */
#include "buffers.h"

#include <mpi-ext.h>

static int rank, size, other;
static char *buffers[2][KINDS];

static const size_t SIZES[] = { 0, 1, 8, 48, 49, 3000, 70000, 524288, 524289, 3000001 };

static void messages(enum kind from, enum kind to) {
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        int bytes = (int)SIZES[i], seed = (int)i + 1;
        char *out = buffers[0][from], *in = buffers[1][to];
        MPI_Request requests[2];
        MPI_Status status;
        fill(from, out, bytes, seed + rank);
        fill(to, in, bytes, 99);
        if (rank == 0) {
            OK(MPI_Send(out, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD));
            OK(MPI_Recv(in, bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &status));
        } else {
            OK(MPI_Recv(in, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &status));
            OK(MPI_Ssend(out, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD));
        }
        int count;
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == bytes);
        expect(to, in, bytes, seed + other);
        fill(to, in, bytes, 98);
        OK(MPI_Irecv(in, bytes, MPI_BYTE, other, 3, MPI_COMM_WORLD, &requests[0]));
        OK(MPI_Isend(out, bytes, MPI_BYTE, other, 3, MPI_COMM_WORLD, &requests[1]));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        expect(to, in, bytes, seed + other);
        fill(to, in, bytes, 97);
        OK(MPI_Sendrecv(out, bytes, MPI_BYTE, other, 4, in, bytes, MPI_BYTE, other, 4, MPI_COMM_WORLD,
                        MPI_STATUS_IGNORE));
        expect(to, in, bytes, seed + other);
        /* The bytes as they were at the call. */
        OK(MPI_Isend(out, bytes, MPI_BYTE, rank, 5, MPI_COMM_WORLD, &requests[0]));
        OK(MPI_Recv(in, bytes, MPI_BYTE, rank, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
        expect(to, in, bytes, seed + rank);
    }
}

/* Messages of a pair keep their order, whatever memory they are from. */
static void order(enum kind kind) {
    int first = 1, second = 2, got = 0;
    char *out = buffers[0][kind];
    write_to(kind, out, &first, sizeof(first));
    if (rank == 0) {
        MPI_Request request;
        OK(MPI_Isend(out, 300000, MPI_INT, 1, 7, MPI_COMM_WORLD, &request));
        OK(MPI_Send(&second, 1, MPI_INT, 1, 7, MPI_COMM_WORLD));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
        OK(MPI_Recv(buffers[1][kind], 300000, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        read_from(kind, &got, buffers[1][kind], sizeof(got));
        CHECK(got == first);
        OK(MPI_Recv(&got, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        CHECK(got == second);
    }
}

static void other_calls(enum kind kind) {
    enum { BYTES = 100000 };
    char *out = buffers[0][kind], *in = buffers[1][kind];
    MPI_Request requests[2];
    MPI_Message message;
    MPI_Status status;
    /* Persistent. */
    OK(MPI_Send_init(out, BYTES, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Recv_init(in, BYTES, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[1]));
    for (int turn = 0; turn < 3; turn++) {
        fill(kind, out, BYTES, turn + 10 * rank);
        OK(MPI_Startall(2, requests));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        expect(kind, in, BYTES, turn + 10 * other);
    }
    OK(MPI_Request_free(&requests[0]));
    OK(MPI_Request_free(&requests[1]));
    /* Matched, buffered, in place. */
    fill(kind, out, BYTES, rank);
    OK(MPI_Buffer_attach(MPI_BUFFER_AUTOMATIC, 0));
    OK(MPI_Bsend(out, BYTES, MPI_BYTE, other, 2, MPI_COMM_WORLD));
    fill(kind, out, BYTES, 50);
    OK(MPI_Mprobe(other, 2, MPI_COMM_WORLD, &message, &status));
    OK(MPI_Mrecv(in, BYTES, MPI_BYTE, &message, MPI_STATUS_IGNORE));
    expect(kind, in, BYTES, other);
    void *detached;
    int detached_bytes;
    OK(MPI_Buffer_detach(&detached, &detached_bytes));
    fill(kind, in, BYTES, rank);
    OK(MPI_Sendrecv_replace(in, BYTES, MPI_BYTE, other, 3, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    expect(kind, in, BYTES, other);
    /* Too long: as much as fits. */
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    fill(kind, out, BYTES, rank);
    fill(kind, in, BYTES, 60);
    OK(MPI_Isend(out, BYTES, MPI_BYTE, other, 4, MPI_COMM_WORLD, &requests[0]));
    RAISES(MPI_ERR_TRUNCATE, MPI_Recv(in, 1000, MPI_BYTE, other, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    expect(kind, in, 1000, other);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    /* Packed. */
    int position = 0;
    fill(kind, out, BYTES, 70);
    OK(MPI_Pack(out, BYTES, MPI_BYTE, in, ROOM, &position, MPI_COMM_WORLD));
    expect(kind, in, BYTES, 70);
    position = 0;
    MPI_Aint place = 0;
    OK(MPI_Pack_external("external32", out, 0, MPI_INT, in, 0, &place));
    OK(MPI_Unpack_external("external32", in, 0, &place, out, 0, MPI_INT));
    CHECK(place == 0);
    fill(kind, out, BYTES, 71);
    OK(MPI_Unpack(in, ROOM, &position, out, BYTES, MPI_BYTE, MPI_COMM_WORLD));
    expect(kind, out, BYTES, 70);
}

/* A receive that nobody asks for any more comes all the same, whatever is called. */
static void freed(enum kind kind) {
    static const int SIZES[] = { 1000, 3000000 };
    for (int i = 0; i < 2; i++) {
        int bytes = SIZES[i], flag = 0;
        char *out = buffers[0][kind], *in = buffers[1][kind], last = 0;
        MPI_Request request;
        fill(kind, out, bytes, rank + 3);
        fill(kind, in, bytes, 33);
        OK(MPI_Irecv(in, bytes, MPI_BYTE, other, 8, MPI_COMM_WORLD, &request));
        OK(MPI_Request_free(&request));
        OK(MPI_Send(out, bytes, MPI_BYTE, other, 8, MPI_COMM_WORLD));
        /* Nothing says when it is complete. The last byte may be there before others: a copy has no order. */
        while (last != value(bytes - 1, other + 3)) {
            OK(MPI_Iprobe(other, 9, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
            read_from(kind, &last, in + bytes - 1, 1);
        }
        double limit = MPI_Wtime() + 20;
        while (wrong_in(kind, in, bytes, other + 3).count > 0 && MPI_Wtime() < limit)
            OK(MPI_Iprobe(other, 9, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
        expect(kind, in, bytes, other + 3);
        OK(MPI_Barrier(MPI_COMM_WORLD));
    }
}

/* Columns: what is between them stays, also what the program writes there meanwhile. */
static void columns(enum kind kind) {
    enum { ROWS = 700, PITCH = 40, WIDTH = 12 };
    char *out = buffers[0][kind], *in = buffers[1][kind], mark[PITCH];
    static char whole[ROWS * PITCH];
    MPI_Datatype column;
    MPI_Request request;
    OK(MPI_Type_vector(ROWS, WIDTH, PITCH, MPI_BYTE, &column));
    OK(MPI_Type_commit(&column));
    fill(kind, out, sizeof(whole), rank + 1);
    fill(kind, in, sizeof(whole), 30);
    memset(mark, 0x11, sizeof(mark));
    OK(MPI_Irecv(in, 1, column, other, 1, MPI_COMM_WORLD, &request));
    write_to(kind, in + 7 * PITCH + WIDTH, mark, PITCH - WIDTH);
    OK(MPI_Send(out, 1, column, other, 1, MPI_COMM_WORLD));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    read_from(kind, whole, in, sizeof(whole));
    for (int at = 0; at < (int)sizeof(whole); at++) {
        int row = at / PITCH, byte = at % PITCH;
        char is = byte < WIDTH ? value(at, other + 1) : row == 7 ? 0x11 : value(at, 30);
        CHECK(whole[at] == is);
    }
    OK(MPI_Bcast(in, 1, column, 0, MPI_COMM_WORLD));
    OK(MPI_Type_free(&column));
}

/* One datatype, of memory of a device and of the host. */
static void mixed(enum kind kind) {
    enum { BYTES = 20000 };
    static char host[2][BYTES];
    MPI_Datatype both[2];
    for (int way = 0; way < 2; way++) {
        int lengths[2] = { BYTES, BYTES };
        MPI_Aint places[2];
        MPI_Datatype bytes[2] = { MPI_BYTE, MPI_BYTE };
        OK(MPI_Get_address(host[way], &places[0]));
        OK(MPI_Get_address(buffers[way][kind], &places[1]));
        OK(MPI_Type_create_struct(2, lengths, places, bytes, &both[way]));
        OK(MPI_Type_commit(&both[way]));
    }
    fill(PLAIN, host[0], BYTES, 1 + rank);
    fill(kind, buffers[0][kind], BYTES, 5 + rank);
    OK(MPI_Sendrecv(MPI_BOTTOM, 1, both[0], other, 1, MPI_BOTTOM, 1, both[1], other, 1, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE));
    expect(PLAIN, host[1], BYTES, 1 + other);
    expect(kind, buffers[1][kind], BYTES, 5 + other);
    OK(MPI_Type_free(&both[0]));
    OK(MPI_Type_free(&both[1]));
}

static void add_all(void *from, void *to, int *count, MPI_Datatype *datatype) {
    (void)datatype;
    for (int at = 0; at < *count; at++) ((int *)to)[at] += ((int *)from)[at];
}

/* A copy in the host has no room for elements that reach beyond their extent. */
static void overhanging(char *out, char *in, MPI_Op own) {
    MPI_Datatype type;
    int class;
    OK(MPI_Type_create_resized(MPI_INT, 0, 2, &type));
    OK(MPI_Type_commit(&type));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Error_class(MPI_Reduce_local(out, in, 3, type, own), &class));
    CHECK(class == MPI_ERR_TYPE);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Type_free(&type));
}

static void collectives(enum kind from, enum kind to) {
    static const int COUNTS[] = { 1, 10, 1000, 100000 };
    static int numbers[200000];
    MPI_Op own;
    OK(MPI_Op_create(add_all, 1, &own));
    for (int i = 0; i < 4; i++) {
        int count = COUNTS[i], bytes = count * (int)sizeof(int);
        char *out = buffers[0][from], *in = buffers[1][to];
        MPI_Request request;
        fill(to, in, bytes, rank == 0 ? 3 : 4);
        OK(MPI_Bcast(in, bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
        expect(to, in, bytes, 3);
        for (int turn = 0; turn < 5; turn++) {
            for (int at = 0; at < count; at++) numbers[at] = at * (rank + 1);
            write_to(from, out, numbers, bytes);
            write_to(to, in, numbers, bytes);
            if (turn == 0) OK(MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
            if (turn == 1) OK(MPI_Allreduce(MPI_IN_PLACE, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
            if (turn == 2) OK(MPI_Allreduce(out, in, count, MPI_INT, own, MPI_COMM_WORLD));
            if (turn == 3) {
                OK(MPI_Iallreduce(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request));
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            }
            if (turn == 4) {
                OK(MPI_Reduce(out, in, count, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD));
                OK(MPI_Bcast(in, count, MPI_INT, 0, MPI_COMM_WORLD));
            }
            read_from(to, numbers, in, bytes);
            for (int at = 0; at < count; at++) CHECK(numbers[at] == at * 3);
        }
        fill(from, out, bytes, rank);
        OK(MPI_Allgather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD));
        for (int of = 0; of < size; of++) expect(to, in + of * bytes, bytes, of);
        OK(MPI_Gather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
        if (rank == 0) expect(to, in + bytes, bytes, 1);
        for (int of = 0; of < size; of++) fill(from, out + of * bytes, bytes, 10 * rank + of);
        OK(MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD));
        for (int of = 0; of < size; of++) expect(to, in + of * bytes, bytes, 10 * of + rank);
        fill(to, in, bytes, 80);
        OK(MPI_Scatter(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
        expect(to, in, bytes, rank);
        for (int at = 0; at < 2 * count; at++) numbers[at] = at + rank;
        write_to(from, out, numbers, 2 * bytes);
        OK(MPI_Reduce_scatter_block(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        read_from(to, numbers, in, bytes);
        for (int at = 0; at < count; at++) CHECK(numbers[at] == 2 * (at + rank * count) + 1);
        for (int at = 0; at < count; at++) numbers[at] = at;
        write_to(from, out, numbers, bytes);
        write_to(to, in, numbers, bytes);
        OK(MPI_Reduce_local(out, in, count, MPI_INT, MPI_SUM));
        OK(MPI_Reduce_local(out, in, count, MPI_INT, own));
        if (to == DEVICE) overhanging(out, in, own);
        read_from(to, numbers, in, bytes);
        for (int at = 0; at < count; at++) CHECK(numbers[at] == 3 * at);
        for (int at = 0; at < count; at++) numbers[at] = at;
        write_to(from, out, numbers, bytes);
        OK(MPI_Scan(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        read_from(to, numbers, in, bytes);
        for (int at = 0; at < count; at++) CHECK(numbers[at] == at * (rank + 1));
    }
    OK(MPI_Op_free(&own));
}

static void neighbours(enum kind kind) {
    enum { BYTES = 5000 };
    int dimensions[1] = { size }, periods[1] = { 1 };
    MPI_Comm ring;
    OK(MPI_Cart_create(MPI_COMM_WORLD, 1, dimensions, periods, 0, &ring));
    char *out = buffers[0][kind], *in = buffers[1][kind];
    fill(kind, out, BYTES, rank + 1);
    fill(kind, out + BYTES, BYTES, rank + 11);
    OK(MPI_Neighbor_alltoall(out, BYTES, MPI_BYTE, in, BYTES, MPI_BYTE, ring));
    expect(kind, in, BYTES, other + 11);
    expect(kind, in + BYTES, BYTES, other + 1);
    OK(MPI_Comm_free(&ring));
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    other = 1 - rank;
    CHECK(size == 2);
    if (!begin()) {
        if (rank == 0) puts("skipped: no CUDA device");
        OK(MPI_Finalize());
        return 0;
    }
    CHECK(MPIX_CUDA_AWARE_SUPPORT == 1 && MPIX_Query_cuda_support() == 1);
    for (int way = 0; way < 2; way++)
        for (enum kind kind = PLAIN; kind < KINDS; kind++) buffers[way][kind] = buffer(kind);
    for (enum kind from = PLAIN; from < KINDS; from++) {
        messages(from, (from + 1) % KINDS);
        messages(from, from);
        order(from);
        other_calls(from);
        freed(from);
        columns(from);
        mixed(from);
        collectives(from, from);
        neighbours(from);
    }
    messages(DEVICE, PLAIN);
    messages(PLAIN, DEVICE);
    collectives(DEVICE, PLAIN);
    collectives(PLAIN, DEVICE);
    OK(MPI_Finalize());
    if (rank == 0) puts("all kinds");
    return 0;
}
