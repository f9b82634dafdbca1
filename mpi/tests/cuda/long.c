/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Long messages of every kind of memory to every other, in all ways to send and to receive. The process may have
 * little more memory than before, so a library that copies a message as a whole fails. With an argument, so many MiB of
 * registered memory are all that there may be.
 */
#define _GNU_SOURCE
#include "buffers.h"
#include <dlfcn.h>
#include <sys/resource.h>

enum { LONGEST = 160 << 20, ANSWER = 7 };

static char *buffers[KINDS];

/* A long buffer of a kind. Virtual memory is made by pieces. */
static char *long_buffer(enum kind kind) {
    CUdeviceptr address = 0;
    void *memory = NULL;
    switch (kind) {
    case PLAIN: CHECK((memory = malloc(LONGEST))); return memory;
    case DEVICE: CU(cuMemAlloc_v2(&address, LONGEST)); break;
    case MANAGED: CU(cuMemAllocManaged(&address, LONGEST, CU_MEM_ATTACH_GLOBAL)); break;
    case MAPPED: return map(LONGEST);
    default: CHECK(0);
    }
    CU(cuCtxSynchronize());
    return (char *)(uintptr_t)address;
}

/* Filled and compared in pieces: there is no room for a copy. */
static void fill_long(enum kind kind, char *to, size_t bytes, int seed) {
    for (size_t done = 0; done < bytes; done += ROOM) {
        size_t n = bytes - done < ROOM ? bytes - done : ROOM;
        for (size_t at = 0; at < n; at++) scratch[at] = value(done + at, seed);
        write_to(kind, to + done, scratch, n);
    }
}

static void expect_long(enum kind kind, const char *from, size_t bytes, int seed) {
    for (size_t done = 0; done < bytes; done += ROOM) {
        size_t n = bytes - done < ROOM ? bytes - done : ROOM;
        read_from(kind, scratch, from + done, n);
        for (size_t at = 0; at < n; at++) CHECK(scratch[at] == value(done + at, seed));
    }
}

static size_t data_bytes(void) {
    char line[256];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof(line), status)) sscanf(line, "VmData: %zu kB", &kib);
    fclose(status);
    return kib << 10;
}

/* No more memory of its own than now, and a little. */
static void limit_memory(size_t more) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_DATA, &limit) == 0);
    limit.rlim_cur = data_bytes() + more;
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
}

static void exchange(int rank, enum kind from, enum kind to, size_t bytes, int seed) {
    MPI_Status status;
    int count;
    if (rank == 0) {
        fill_long(from, buffers[from], bytes, seed);
        OK(MPI_Send(buffers[from], (int)bytes, MPI_BYTE, 1, seed, MPI_COMM_WORLD));
    } else {
        fill_long(to, buffers[to], bytes, seed + 1);
        OK(MPI_Recv(buffers[to], LONGEST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == (int)bytes && status.MPI_SOURCE == 0 && status.MPI_TAG == seed);
        expect_long(to, buffers[to], bytes, seed);
    }
}

/* Both ways at once, several messages each, which come in their order. */
static void both_ways(int rank, size_t bytes) {
    enum { COUNT = 6 };
    MPI_Request requests[2 * COUNT];
    size_t part = bytes / 2 / COUNT;
    int peer = 1 - rank;
    fill_long(DEVICE, buffers[DEVICE], bytes, rank + 40);
    char *in = buffers[DEVICE] + bytes / 2;
    for (int i = 0; i < COUNT; i++)
        OK(MPI_Irecv(in + part * (size_t)i, (int)part, MPI_BYTE, peer, 5, MPI_COMM_WORLD, &requests[i]));
    for (int i = 0; i < COUNT; i++)
        OK(MPI_Isend(buffers[DEVICE] + part * (size_t)i, (int)part, MPI_BYTE, peer, 5, MPI_COMM_WORLD,
                     &requests[COUNT + i]));
    OK(MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE));
    expect_long(DEVICE, in, part * COUNT, peer + 40);
    OK(MPI_Sendrecv(buffers[DEVICE], (int)part, MPI_BYTE, peer, 6, in, (int)part, MPI_BYTE, peer, 6, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE));
    expect_long(DEVICE, in, part, peer + 40);
}

/* Messages that are longer than their buffer, probed for, matched and received, cancelled, freed; and short ones beside
 * them. */
static void odd_ones(int rank, size_t bytes) {
    MPI_Status status;
    MPI_Message message;
    MPI_Request request;
    int count, flag;
    char *buffer = buffers[DEVICE];
    if (rank == 0) {
        fill_long(DEVICE, buffer, bytes, 60);
        for (int i = 0; i < 3; i++) OK(MPI_Send(buffer, (int)bytes, MPI_BYTE, 1, 60 + i, MPI_COMM_WORLD));
        OK(MPI_Issend(buffer, (int)bytes, MPI_BYTE, 1, 63, MPI_COMM_WORLD, &request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        OK(MPI_Send(buffer, 100, MPI_BYTE, 1, 64, MPI_COMM_WORLD));
        OK(MPI_Isend(buffer, (int)bytes, MPI_BYTE, 1, 65, MPI_COMM_WORLD, &request));
        OK(MPI_Request_free(&request));
        OK(MPI_Recv(&flag, 1, MPI_INT, 1, 66, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    } else {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        size_t shorter = bytes - 3 * 4096 - 5;
        fill_long(DEVICE, buffer, bytes, 70);
        int code = MPI_Recv(buffer, (int)shorter, MPI_BYTE, 0, 60, MPI_COMM_WORLD, &status), class;
        MPI_Error_class(code, &class);
        CHECK(class == MPI_ERR_TRUNCATE);
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        expect_long(DEVICE, buffer, shorter, 60);
        CHECK(count == (int)shorter);
        read_from(DEVICE, scratch, buffer + shorter, 16);
        for (size_t at = 0; at < 16; at++) CHECK(scratch[at] == value(shorter + at, 70));
        OK(MPI_Probe(MPI_ANY_SOURCE, 61, MPI_COMM_WORLD, &status));
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == (int)bytes);
        fill_long(DEVICE, buffer, bytes, 71);
        OK(MPI_Recv(buffer, count, MPI_BYTE, status.MPI_SOURCE, 61, MPI_COMM_WORLD, &status));
        expect_long(DEVICE, buffer, bytes, 60);
        OK(MPI_Mprobe(0, 62, MPI_COMM_WORLD, &message, &status));
        fill_long(DEVICE, buffer, bytes, 72);
        OK(MPI_Mrecv(buffer, (int)bytes, MPI_BYTE, &message, &status));
        expect_long(DEVICE, buffer, bytes, 60);
        fill_long(DEVICE, buffer, bytes, 73);
        OK(MPI_Recv(buffer, (int)bytes, MPI_BYTE, 0, 63, MPI_COMM_WORLD, &status));
        expect_long(DEVICE, buffer, bytes, 60);
        /* A short message to a long buffer. */
        fill_long(DEVICE, buffer, bytes, 74);
        OK(MPI_Recv(buffer, (int)bytes, MPI_BYTE, 0, 64, MPI_COMM_WORLD, &status));
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == 100);
        expect_long(DEVICE, buffer, 100, 60);
        OK(MPI_Irecv(buffer, (int)bytes, MPI_BYTE, 0, 99, MPI_COMM_WORLD, &request));
        OK(MPI_Cancel(&request));
        OK(MPI_Wait(&request, &status));
        OK(MPI_Test_cancelled(&status, &flag));
        CHECK(flag);
        OK(MPI_Recv(buffer, (int)bytes, MPI_BYTE, 0, 65, MPI_COMM_WORLD, &status));
        expect_long(DEVICE, buffer, bytes, 60);
        OK(MPI_Send(&flag, 1, MPI_INT, 0, 66, MPI_COMM_WORLD));
    }
    /* To itself. */
    char *half = buffer + bytes / 2;
    size_t part = bytes / 2;
    fill_long(DEVICE, buffer, part, 80);
    OK(MPI_Sendrecv(buffer, (int)part, MPI_BYTE, rank, 1, half, (int)part, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &status));
    expect_long(DEVICE, half, part, 80);
    OK(MPI_Isend(half, (int)part, MPI_BYTE, rank, 2, MPI_COMM_WORLD, &request));
    OK(MPI_Recv(buffers[PLAIN], (int)bytes, MPI_BYTE, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &status));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    expect_long(PLAIN, buffers[PLAIN], part, 80);
    fill_long(PLAIN, buffers[PLAIN], part, 81);
    OK(MPI_Irecv(half, (int)part, MPI_BYTE, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, &request));
    OK(MPI_Send(buffers[PLAIN], (int)part, MPI_BYTE, rank, 3, MPI_COMM_WORLD));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    expect_long(DEVICE, half, part, 81);
}

/* Started again and again. */
static void persistent(int rank, size_t bytes) {
    MPI_Request request;
    if (rank == 0)
        OK(MPI_Send_init(buffers[DEVICE], (int)bytes, MPI_BYTE, 1, 9, MPI_COMM_WORLD, &request));
    else
        OK(MPI_Recv_init(buffers[DEVICE], (int)bytes, MPI_BYTE, 0, 9, MPI_COMM_WORLD, &request));
    for (int turn = 0; turn < 3; turn++) {
        fill_long(DEVICE, buffers[DEVICE], bytes, rank == 0 ? turn : 90);
        OK(MPI_Start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        if (rank == 1) expect_long(DEVICE, buffers[DEVICE], bytes, turn);
    }
    OK(MPI_Request_free(&request));
}

/* Rows with gaps. */
static void rows(int rank, size_t bytes) {
    MPI_Datatype type;
    const size_t width = 96 << 10, pitch = 128 << 10, count = bytes / pitch;
    OK(MPI_Type_vector((int)count, (int)width, (int)pitch, MPI_BYTE, &type));
    OK(MPI_Type_commit(&type));
    fill_long(DEVICE, buffers[DEVICE], bytes, rank);
    if (rank == 0) {
        OK(MPI_Send(buffers[DEVICE], 1, type, 1, 10, MPI_COMM_WORLD));
    } else {
        OK(MPI_Recv(buffers[DEVICE], 1, type, 0, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        for (size_t row = 0; row < count; row++) {
            read_from(DEVICE, scratch, buffers[DEVICE] + row * pitch, pitch);
            for (size_t at = 0; at < pitch; at++) CHECK(scratch[at] == value(row * pitch + at, at < width ? 0 : 1));
        }
    }
    OK(MPI_Type_free(&type));
}

typedef unsigned long (*counter)(void);

/* What the driver in software counts; a real one counts nothing. */
static unsigned long count_of(const char *name) {
    counter found = (counter)dlsym(RTLD_DEFAULT, name);
    return found ? found() : 0;
}

/* Many short runs of the host's memory: the driver is not asked about each. */
static void host_rows(int rank, size_t bytes) {
    MPI_Datatype type;
    const int pitch = 4096, count = (int)(bytes / (size_t)pitch);
    OK(MPI_Type_vector(count, 64, pitch, MPI_BYTE, &type));
    OK(MPI_Type_commit(&type));
    unsigned long before = count_of("cuModelQueries");
    if (rank == 0) OK(MPI_Send(buffers[PLAIN], 1, type, 1, 11, MPI_COMM_WORLD));
    else OK(MPI_Recv(buffers[PLAIN], 1, type, 0, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(count_of("cuModelQueries") - before < (unsigned long)count / 16);
    OK(MPI_Type_free(&type));
}

/* A persistent collective reads its buffer when it is started, not before. */
static void read_when_started(int rank) {
    enum { BYTES = 1 << 20 };
    MPI_Request request;
    fill_long(DEVICE, buffers[DEVICE], BYTES, 5);
    unsigned long before = count_of("cuModelCopies");
    OK(MPI_Bcast_init(buffers[DEVICE], BYTES, MPI_BYTE, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    CHECK(count_of("cuModelCopies") == before);
    for (int turn = 0; turn < 2; turn++) {
        fill_long(DEVICE, buffers[DEVICE], BYTES, rank == 0 ? turn + 6 : 20);
        OK(MPI_Start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        expect_long(DEVICE, buffers[DEVICE], BYTES, turn + 6);
    }
    OK(MPI_Request_free(&request));
}

int main(int argc, char **argv) {
    static const enum kind kinds[] = { DEVICE, PLAIN, MANAGED, MAPPED };
    int rank, seed = 0;
    size_t most = argc > 1 ? (size_t)atoi(argv[1]) << 20 : 0;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    if (!begin()) {
        if (rank == 0) puts("skipped: no CUDA device");
        OK(MPI_Finalize());
        return 0;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) buffers[kinds[i]] = long_buffer(kinds[i]);
    fill_long(PLAIN, buffers[PLAIN], LONGEST, 1);
    /* What begins once. */
    exchange(rank, DEVICE, DEVICE, 4 << 20, 200);
    exchange(rank, PLAIN, PLAIN, 4 << 20, 201);
    if (most) limit_memory(most + (24 << 20));
    for (size_t bytes = 64 << 10; bytes <= 64 << 20; bytes *= 4) {
        for (int odd = 0; odd < 2; odd++) exchange(rank, DEVICE, DEVICE, bytes + (size_t)odd * 4097, seed++);
        exchange(rank, DEVICE, PLAIN, bytes, seed++);
        exchange(rank, PLAIN, DEVICE, bytes, seed++);
    }
    exchange(rank, MANAGED, MAPPED, 16 << 20, seed++);
    exchange(rank, MAPPED, MANAGED, 16 << 20, seed++);
    exchange(rank, DEVICE, DEVICE, LONGEST, seed++);
    both_ways(rank, 48 << 20);
    odd_ones(rank, 12 << 20);
    persistent(rank, 8 << 20);
    rows(rank, 16 << 20);
    host_rows(rank, 32 << 20);
    read_when_started(rank);
    if (most) CHECK(count_of("cuModelRegistered") <= most);
    OK(MPI_Finalize());
    if (rank == 0) puts("long ones");
    return 0;
}
