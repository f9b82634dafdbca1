/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory of a device is allocated, sent and freed again and again, and each time at the same address. What is received
 * is of the allocation that is there now. The receiver keeps no more open than it may, and closes what is gone. The
 * argument says how often.
 */
#include "buffers.h"

enum { BYTES = 540000, SPAN = 4096 };

int main(int argc, char **argv) {
    CUdeviceptr first = 0, kept;
    unsigned long most = 0;
    int rank, again = 0;
    const int turns = argc > 1 ? atoi(argv[1]) : 100;
    const char *bound = getenv("ONECOPY_DEVICE_MAPPINGS");
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK(begin());
    CU(cuMemAlloc_v2(&kept, BYTES));
    char *in = (char *)(uintptr_t)kept;
    for (int turn = 0; turn < turns; turn++) {
        if (rank == 0) {
            CUdeviceptr address;
            CU(cuMemAlloc_v2(&address, BYTES));
            again += address == first;
            first = address;
            char *out = (char *)(uintptr_t)address;
            fill(DEVICE, out, SPAN, turn);
            fill(DEVICE, out + BYTES - SPAN, SPAN, turn + 1);
            OK(MPI_Send(out, BYTES, MPI_BYTE, 1, 1, MPI_COMM_WORLD));
            CU(cuMemFree_v2(address));
        } else {
            OK(MPI_Recv(in, BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            expect(DEVICE, in, SPAN, turn);
            expect(DEVICE, in + BYTES - SPAN, SPAN, turn + 1);
            unsigned long open = cuModelMappings();
            most = open > most ? open : most;
        }
    }
    if (rank == 0) CHECK(again >= turns - 1);
    if (rank == 1) {
        /* One is in use, one is being closed by then, whatever the bound. */
        fprintf(stderr, "%lu openings, %lu copies, at most %lu open\n", cuModelOpenings(), cuModelBetween(), most);
        CHECK(most <= (bound ? (unsigned long)atol(bound) : 2) + 1);
        CHECK(cuModelOpenings() >= (unsigned long)turns / 2 && cuModelBetween() >= (unsigned long)turns / 2);
    }
    CHECK(cuModelMisuses() == 0);
    OK(MPI_Finalize());
    if (rank == 0) puts("always the new one");
    return 0;
}
