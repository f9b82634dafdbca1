/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Long messages from device to device. The first argument says what the driver is to see of them: copies between
 * devices ("once"), or none between processes ("staged"). With a second one, each rank has a device of its own.
 */
#define _GNU_SOURCE
#include "buffers.h"
#include <dlfcn.h>

enum { LONG = 600000, WINDOW = 24, TURNS = 8 };

static const size_t SIZES[] = { 8, 4096, 524288, 524289, LONG, 1 << 20, 3000001, 8 << 20 };

static int rank, other, is_once;
static char *buffers[2][KINDS];

typedef unsigned long (*counter)(void);

/* What the driver in software counts; a real one counts nothing. */
static unsigned long count_of(const char *name) {
    counter found = (counter)dlsym(RTLD_DEFAULT, name);
    return found ? found() : 0;
}

static unsigned long between(void) { return count_of("cuModelBetween"); }

/* A device that is late lets a message go through the host: so not all are asked for, but most. */
static void expect_copies(unsigned long before, unsigned long messages) {
    unsigned long seen = between() - before;
    if (!dlsym(RTLD_DEFAULT, "cuModelBetween")) return;
    if (is_once ? 2 * seen < messages || seen > messages : seen != 0)
        fprintf(stderr, "rank %d: %lu copies for %lu messages\n", rank, seen, messages);
    CHECK(is_once ? 2 * seen >= messages && seen <= messages : seen == 0);
}

/* Both ways at once. */
static void exchange(enum kind from, enum kind to, size_t bytes, int seed) {
    MPI_Request requests[2];
    fill(from, buffers[0][from], bytes, seed + rank);
    fill(to, buffers[1][to], bytes, seed + 50);
    OK(MPI_Irecv(buffers[1][to], (int)bytes, MPI_BYTE, other, seed, MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Isend(buffers[0][from], (int)bytes, MPI_BYTE, other, seed, MPI_COMM_WORLD, &requests[1]));
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    expect(to, buffers[1][to], bytes, seed + other);
}

static void all_kinds(void) {
    unsigned long before = between();
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(*SIZES); i++) {
        for (enum kind kind = PLAIN; kind < KINDS; kind++) {
            exchange(kind, DEVICE, SIZES[i], (int)i);
            if (kind != DEVICE) exchange(DEVICE, kind, SIZES[i], (int)i);
        }
    }
    if (!is_once) CHECK(between() == before);
    before = between();
    for (int turn = 0; turn < TURNS; turn++) exchange(DEVICE, DEVICE, SIZES[4 + turn % 4], turn);
    expect_copies(before, TURNS);
}

/* As many at once as one likes, to parts of one allocation, in their order. */
static void many(void) {
    MPI_Request requests[2 * WINDOW];
    enum { BYTES = 8 << 20, STEP = BYTES / WINDOW };
    unsigned long before = between();
    fill(DEVICE, buffers[0][DEVICE], BYTES, rank + 3);
    fill(DEVICE, buffers[1][DEVICE], BYTES, 9);
    /* Below the length from which they are offered. */
    for (int i = 0; i < WINDOW; i++) {
        char *in = buffers[1][DEVICE] + i * STEP;
        OK(MPI_Irecv(in, STEP, MPI_BYTE, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &requests[i]));
    }
    for (int i = 0; i < WINDOW; i++) {
        OK(MPI_Isend(buffers[0][DEVICE] + i * STEP, STEP, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[WINDOW + i]));
    }
    OK(MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < WINDOW; i++) {
        read_from(DEVICE, scratch, buffers[1][DEVICE] + i * STEP, STEP);
        for (size_t at = 0; at < STEP; at++) CHECK(scratch[at] == value((size_t)i * STEP + at, other + 3));
    }
    CHECK(between() == before);
    /* Long ones, which overlap where they are read, and empty ones. */
    for (int i = 0; i < WINDOW; i++) {
        char *in = buffers[1][DEVICE] + i % 8 * (1 << 20);
        OK(MPI_Irecv(in, i < 8 ? LONG : 0, MPI_BYTE, other, 100 + i, MPI_COMM_WORLD, &requests[i]));
    }
    for (int i = WINDOW - 1; i >= 0; i--)
        OK(MPI_Isend(buffers[0][DEVICE] + i, i < 8 ? LONG : 0, MPI_BYTE, other, 100 + i, MPI_COMM_WORLD,
                     &requests[WINDOW + i]));
    OK(MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE));
    for (size_t i = 0; i < 8; i++) {
        read_from(DEVICE, scratch, buffers[1][DEVICE] + i * (1 << 20), LONG);
        for (size_t at = 0; at < LONG; at++) CHECK(scratch[at] == value(i + at, other + 3));
    }
    expect_copies(before, 8);
}

/* Into less room than there are bytes, and into more. */
static void other_lengths(void) {
    enum { SENT = 3000001, ROOMY = 700000, SMALL = 1000 };
    static const int ROOMS[] = { ROOMY, SMALL, SENT, 5000000, 0 };
    MPI_Status status;
    MPI_Request request;
    int count;
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    for (int i = 0; i < 5; i++) {
        int room = ROOMS[i], got = room < SENT ? room : SENT;
        fill(DEVICE, buffers[0][DEVICE], SENT, rank + i);
        fill(DEVICE, buffers[1][DEVICE], ROOM, 60);
        OK(MPI_Isend(buffers[0][DEVICE], SENT, MPI_BYTE, other, 2, MPI_COMM_WORLD, &request));
        int code = MPI_Recv(buffers[1][DEVICE], room, MPI_BYTE, other, 2, MPI_COMM_WORLD, &status);
        CHECK(class_of(code) == (room < SENT ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == got);
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        expect(DEVICE, buffers[1][DEVICE], (size_t)got, other + i);
        read_from(DEVICE, scratch, buffers[1][DEVICE] + got, 4096);
        for (size_t at = 0; at < 4096; at++) CHECK(scratch[at] == value((size_t)got + at, 60));
    }
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
}

/* In rows on one side, or on both. */
static void rows(void) {
    enum { ROWS = 1500, WIDTH = 1000, PITCH = 2000 };
    MPI_Datatype type;
    OK(MPI_Type_vector(ROWS, WIDTH, PITCH, MPI_BYTE, &type));
    OK(MPI_Type_commit(&type));
    for (int way = 1; way < 4; way++) {
        MPI_Request request;
        int from_rows = way & 1, to_rows = way & 2;
        unsigned long before = between();
        fill(DEVICE, buffers[0][DEVICE], ROWS * PITCH, rank);
        fill(DEVICE, buffers[1][DEVICE], ROWS * PITCH, 60);
        OK(MPI_Isend(buffers[0][DEVICE], from_rows ? 1 : ROWS * WIDTH, from_rows ? type : MPI_BYTE, other, 3,
                     MPI_COMM_WORLD, &request));
        OK(MPI_Recv(buffers[1][DEVICE], to_rows ? 1 : ROWS * WIDTH, to_rows ? type : MPI_BYTE, other, 3, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        CHECK(between() == before);
        read_from(DEVICE, scratch, buffers[1][DEVICE], ROWS * PITCH);
        for (size_t at = 0; at < ROWS * WIDTH; at++) {
            size_t sent = from_rows ? at / WIDTH * PITCH + at % WIDTH : at;
            size_t got = to_rows ? at / WIDTH * PITCH + at % WIDTH : at;
            CHECK(scratch[got] == value(sent, other));
            if (to_rows) CHECK(scratch[at / WIDTH * PITCH + WIDTH] == value(at / WIDTH * PITCH + WIDTH, 60));
        }
    }
    OK(MPI_Type_free(&type));
}

/* Sent before it is received: the offer waits with the announcement. Probed for, matched, synchronous. */
static void late(void) {
    MPI_Request request;
    MPI_Message message;
    MPI_Status status;
    int count;
    unsigned long before = between();
    for (int turn = 0; turn < 3; turn++) {
        fill(DEVICE, buffers[0][DEVICE], LONG, rank + turn);
        OK(MPI_Issend(buffers[0][DEVICE], LONG, MPI_BYTE, other, 4, MPI_COMM_WORLD, &request));
        OK(MPI_Sendrecv(&turn, 1, MPI_INT, other, 5, &count, 1, MPI_INT, other, 5, MPI_COMM_WORLD, &status));
        OK(MPI_Mprobe(MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &message, &status));
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == LONG);
        OK(MPI_Mrecv(buffers[1][DEVICE], LONG, MPI_BYTE, &message, &status));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        expect(DEVICE, buffers[1][DEVICE], LONG, other + turn);
    }
    expect_copies(before, 3);
}

/* To itself: no other process is needed for that, and no kind of device memory is shown to one. */
static void to_itself(void) {
    static const enum kind DEVICES[] = { DEVICE, POOLED, MAPPED };
    int once = is_once;
    is_once = getenv("ONECOPY_DEVICE_MAPPINGS") == NULL || strcmp(getenv("ONECOPY_DEVICE_MAPPINGS"), "0") != 0;
    if (getenv("MODEL_CUDA_OLD")) is_once = 0;
    unsigned long before = between();
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            char *out = buffers[0][DEVICES[from]], *in = buffers[1][DEVICES[to]];
            fill(DEVICES[from], out, LONG, from);
            fill(DEVICES[to], in, LONG, 30);
            OK(MPI_Sendrecv(out, LONG, MPI_BYTE, rank, 6, in, LONG, MPI_BYTE, rank, 6, MPI_COMM_WORLD,
                            MPI_STATUS_IGNORE));
            expect(DEVICES[to], in, LONG, from);
        }
    }
    expect_copies(before, 9);
    /* The receive comes later, has less room, or lies in the host. */
    MPI_Request request;
    fill(DEVICE, buffers[0][DEVICE], LONG, 5);
    OK(MPI_Isend(buffers[0][DEVICE], LONG, MPI_BYTE, rank, 7, MPI_COMM_WORLD, &request));
    OK(MPI_Recv(buffers[1][PLAIN], LONG, MPI_BYTE, rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    expect(PLAIN, buffers[1][PLAIN], LONG, 5);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    fill(DEVICE, buffers[1][DEVICE], LONG, 31);
    OK(MPI_Isend(buffers[0][DEVICE], LONG, MPI_BYTE, rank, 7, MPI_COMM_WORLD, &request));
    RAISES(MPI_ERR_TRUNCATE,
           MPI_Recv(buffers[1][DEVICE], 1000, MPI_BYTE, rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    expect(DEVICE, buffers[1][DEVICE], 1000, 5);
    read_from(DEVICE, scratch, buffers[1][DEVICE] + 1000, 100);
    for (size_t at = 0; at < 100; at++) CHECK(scratch[at] == value(1000 + at, 31));
    is_once = once;
}

static void collectives(void) {
    enum { COUNT = 500000 };
    static int numbers[COUNT];
    for (int at = 0; at < COUNT; at++) numbers[at] = at * (rank + 1);
    write_to(DEVICE, buffers[0][DEVICE], numbers, sizeof(numbers));
    OK(MPI_Allreduce(buffers[0][DEVICE], buffers[1][DEVICE], COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    read_from(DEVICE, numbers, buffers[1][DEVICE], sizeof(numbers));
    for (int at = 0; at < COUNT; at++) CHECK(numbers[at] == 3 * at);
    fill(DEVICE, buffers[0][DEVICE], 4 << 20, rank == 1 ? 1 : 2);
    OK(MPI_Bcast(buffers[0][DEVICE], 4 << 20, MPI_BYTE, 1, MPI_COMM_WORLD));
    expect(DEVICE, buffers[0][DEVICE], 4 << 20, 1);
    fill(DEVICE, buffers[0][DEVICE], 4 << 20, rank);
    OK(MPI_Alltoall(buffers[0][DEVICE], 2 << 20, MPI_BYTE, buffers[1][DEVICE], 2 << 20, MPI_BYTE, MPI_COMM_WORLD));
    read_from(DEVICE, scratch, buffers[1][DEVICE], 4 << 20);
    for (size_t of = 0; of < 2; of++)
        for (size_t at = 0; at < 2 << 20; at++)
            CHECK(scratch[of * (2 << 20) + at] == value((size_t)rank * (2 << 20) + at, (int)of));
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    is_once = strcmp(argv[1], "once") == 0;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    other = 1 - rank;
    if (!begin()) {
        if (rank == 0) puts("skipped: no CUDA device");
        OK(MPI_Finalize());
        return 0;
    }
    int devices;
    CU(cuDeviceGetCount(&devices));
    if (argc > 2 && devices > 1 && rank == 1) {
        device = 1;
        CU(cuDevicePrimaryCtxRetain(&context, device));
        CU(cuCtxSetCurrent(context));
    }
    for (int way = 0; way < 2; way++)
        for (enum kind kind = PLAIN; kind < KINDS; kind++) buffers[way][kind] = buffer(kind);
    all_kinds();
    many();
    other_lengths();
    rows();
    late();
    to_itself();
    collectives();
    if (is_once) CHECK(count_of("cuModelOpenings") > 0 || !dlsym(RTLD_DEFAULT, "cuModelOpenings"));
    CHECK(count_of("cuModelMisuses") == 0);
    OK(MPI_Finalize());
    if (rank == 0) puts("from device to device");
    return 0;
}
