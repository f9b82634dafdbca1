/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A rank resets its device between messages of another one's device. What it had open is gone, and its own memory is
 * there instead. Each message is what was sent, and no other memory changes.
 */
#include "buffers.h"

enum { BYTES = 600000, ALL = ROOM, TURNS = 6 };

static char *memory(size_t bytes) {
    CUdeviceptr address;
    CU(cuMemAlloc_v2(&address, bytes));
    return (char *)(uintptr_t)address;
}

static void turns(int rank, char *at, int seed) {
    for (int turn = 0; turn < TURNS; turn++) {
        if (rank == 0) {
            fill(DEVICE, at, BYTES, seed + turn);
            OK(MPI_Send(at, BYTES, MPI_BYTE, 1, 1, MPI_COMM_WORLD));
        } else {
            OK(MPI_Recv(at, BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            expect(DEVICE, at, BYTES, seed + turn);
        }
    }
}

int main(int argc, char **argv) {
    int rank;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK(begin());
    char *at = memory(BYTES), *all = NULL;
    turns(rank, at, 1);
    if (rank == 1) {
        CHECK(cuModelMappings() == 1 && cuModelOpenings() == 1);
        CU(cuDevicePrimaryCtxReset_v2(0));
        CHECK(cuModelMappings() == 0);
        CU(cuDevicePrimaryCtxRetain(&context, 0));
        CU(cuCtxSetCurrent(context));
        all = memory(ALL);
        fill(DEVICE, all, ALL, 50);
        at = memory(BYTES);
    }
    turns(rank, at, 20);
    if (rank == 1) {
        expect(DEVICE, all, ALL, 50);
        CHECK(cuModelMappings() == 1 && cuModelOpenings() == 2);
    }
    OK(MPI_Barrier(MPI_COMM_WORLD));
    CHECK(cuModelMisuses() == 0);
    OK(MPI_Finalize());
    if (rank == 0) puts("after a reset");
    return 0;
}
