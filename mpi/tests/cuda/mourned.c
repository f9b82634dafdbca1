/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A rank is killed while a device copies a message from its memory, or to its memory. The other one is told who died,
 * and not before the copy has ended if that is its own. It keeps nothing open of the dead one. The argument says who
 * dies: the sender, the receiver, or nobody, as the job is aborted. A second argument says of what the memory is that is
 * sent: of a pool, or of virtual addresses.
 */
#define _GNU_SOURCE
#include "buffers.h"

#include <signal.h>
#include <unistd.h>

enum { BYTES = 5 << 20, ROUND = 6 << 20, DATA = 1, WORD = 2, LOOKS = 2000 };

static CUdeviceptr data[2];

static char *at(int which) { return (char *)(uintptr_t)data[which]; }

/* Memory that others open by a descriptor. */
static CUdeviceptr shown(int is_pool) {
    CUdeviceptr address;
    if (is_pool) return from_pool(new_pool(BY_DESCRIPTOR), BYTES);
    CU(cuMemAddressReserve(&address, ROUND, 0, 0, 0));
    map_at(address, ROUND, BY_DESCRIPTOR);
    return address;
}

/* Both know each other's memory. */
static void warm(int rank, unsigned long mappings) {
    for (int turn = 0; turn < 4; turn++) {
        OK(MPI_Sendrecv(at(0), BYTES, MPI_BYTE, 1 - rank, DATA, at(1), BYTES, MPI_BYTE, 1 - rank, DATA, MPI_COMM_WORLD,
                        MPI_STATUS_IGNORE));
    }
    CHECK(cuModelBetween() > 0 && cuModelMappings() == mappings);
}

static void names_the_dead(int code, const char *name) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    CHECK(code != MPI_SUCCESS);
    OK(MPI_Error_string(code, text, &length));
    if (!strstr(text, name)) fprintf(stderr, "%s\n", text);
    CHECK(strstr(text, name));
}

/* Receives, and holds the copy back. */
static void begin_copy(int peer, MPI_Request *request) {
    unsigned long before = cuModelBetween();
    int flag = 0;
    cuModelHold(0, 2);
    OK(MPI_Irecv(at(1), BYTES, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, request));
    while (cuModelBetween() == before) {
        OK(MPI_Test(request, &flag, MPI_STATUS_IGNORE));
        CHECK(!flag);
    }
}

int main(int argc, char **argv) {
    int rank, flag = 0, code = MPI_SUCCESS;
    char word = 0;
    MPI_Request request;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(argc > 1 && begin());
    const int sender_dies = strcmp(argv[1], "sender") == 0, aborts = strcmp(argv[1], "nobody") == 0;
    const int is_pool = argc > 2 && strcmp(argv[2], "pool") == 0;
    for (int i = 0; i < 2; i++) {
        if (i == 0 && argc > 2) data[i] = shown(is_pool);
        else CU(cuMemAlloc_v2(&data[i], BYTES));
        fill(DEVICE, at(i), BYTES, rank + i);
    }
    /* Memory of a pool is open for one message alone. */
    warm(rank, is_pool ? 0 : 1);
    if (rank == 1) {
        if (sender_dies) {
            OK(MPI_Isend(at(0), BYTES, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, &request));
            OK(MPI_Recv(&word, 1, MPI_BYTE, 0, WORD, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            raise(SIGKILL);
        }
        begin_copy(0, &request);
        if (aborts) MPI_Abort(MPI_COMM_WORLD, 7);
        raise(SIGKILL);
    }
    if (!sender_dies) {
        /* The receiver dies: the memory is this rank's own again. */
        code = MPI_Send(at(0), BYTES, MPI_BYTE, 1, DATA, MPI_COMM_WORLD);
        names_the_dead(code, "rank 1");
    } else {
        begin_copy(1, &request);
        OK(MPI_Send(&word, 1, MPI_BYTE, 1, WORD, MPI_COMM_WORLD));
        /* Until the copy ends, the buffer is the device's. */
        while (MPI_Send(&word, 1, MPI_BYTE, 1, WORD, MPI_COMM_WORLD) == MPI_SUCCESS) usleep(1000);
        for (int look = 0; look < LOOKS; look++) {
            OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
            CHECK(!flag);
        }
        cuModelHold(0, 0);
        names_the_dead(MPI_Wait(&request, MPI_STATUS_IGNORE), "rank 1");
        while (cuModelMappings() != 0) usleep(1000);
    }
    if (argc < 3 || is_pool) CU(cuMemFree_v2(data[0]));
    else CU(cuMemUnmap(data[0], ROUND));
    CU(cuMemFree_v2(data[1]));
    CU(cuMemAlloc_v2(&data[0], BYTES));
    CU(cuMemAlloc_v2(&data[1], BYTES));
    fill(DEVICE, at(0), BYTES, 9);
    OK(MPI_Sendrecv(at(0), BYTES, MPI_BYTE, 0, DATA, at(1), BYTES, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    expect(DEVICE, at(1), BYTES, 9);
    CHECK(cuModelMisuses() == 0);
    puts("rank 0 is well");
    fflush(stdout);
    MPI_Finalize();
    exit(0);
}
