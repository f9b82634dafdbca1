/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Contexts that end once all is complete that was done in them: the library keeps all of its memory. */
#include "buffers.h"

enum { BYTES = 4 << 20, TURNS = 20 };

int main(int argc, char **argv) {
    char *packed = malloc(BYTES);
    int rank, peer;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    peer = 1 - rank;
    CHECK(packed && begin());
    for (int turn = 0; turn <= TURNS; turn++) {
        CUcontext other = context;
        CUdeviceptr address;
        int position = 0;
        fill(PLAIN, packed, BYTES, turn + rank);
        /* The last turn is in the context that stays. */
        if (turn < TURNS) CU(cuCtxCreate_v2(&other, 0, 0));
        CU(cuMemAlloc_v2(&address, BYTES));
        void *buffer = (void *)(uintptr_t)address;
        OK(MPI_Unpack(packed, BYTES, &position, buffer, BYTES, MPI_BYTE, MPI_COMM_WORLD));
        expect(DEVICE, buffer, BYTES, turn + rank);
        OK(MPI_Sendrecv_replace(buffer, BYTES, MPI_BYTE, peer, 0, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        expect(DEVICE, buffer, BYTES, turn + peer);
        CU(cuMemFree_v2(address));
        if (turn < TURNS) {
            CU(cuCtxDestroy_v2(other));
            CU(cuCtxSetCurrent(context));
        }
    }
    OK(MPI_Finalize());
    if (rank == 0) puts("all contexts");
    return 0;
}
