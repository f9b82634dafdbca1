/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The driver registers so many regions of host memory, and refuses more. Messages of devices both ways, and to oneself,
 * get through with those.
 */
#include "buffers.h"

enum { BYTES = 4 << 20, MESSAGES = 12 };

int main(int argc, char **argv) {
    MPI_Request requests[4 * MESSAGES];
    void *out[MESSAGES], *in[2 * MESSAGES];
    int rank;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK(argc > 1 && begin());
    for (int i = 0; i < 2 * MESSAGES; i++) {
        CUdeviceptr address;
        CU(cuMemAlloc_v2(&address, BYTES));
        in[i] = (void *)(uintptr_t)address;
        fill(DEVICE, in[i], BYTES, 99);
    }
    for (int i = 0; i < MESSAGES; i++) {
        CUdeviceptr address;
        CU(cuMemAlloc_v2(&address, BYTES));
        out[i] = (void *)(uintptr_t)address;
        fill(DEVICE, out[i], BYTES, 2 * i + rank);
    }
    cuModelFault(MODEL_NO_REGISTRATION, atoi(argv[1]));
    for (int i = 0; i < MESSAGES; i++) {
        MPI_Request *four = requests + 4 * i;
        OK(MPI_Isend(out[i], BYTES, MPI_BYTE, 1 - rank, i, MPI_COMM_WORLD, four));
        OK(MPI_Isend(out[i], BYTES, MPI_BYTE, rank, i, MPI_COMM_WORLD, four + 1));
        OK(MPI_Irecv(in[i], BYTES, MPI_BYTE, 1 - rank, i, MPI_COMM_WORLD, four + 2));
        OK(MPI_Irecv(in[MESSAGES + i], BYTES, MPI_BYTE, rank, i, MPI_COMM_WORLD, four + 3));
    }
    OK(MPI_Waitall(4 * MESSAGES, requests, MPI_STATUSES_IGNORE));
    cuModelFault(MODEL_NO_FAULT, 0);
    for (int i = 0; i < MESSAGES; i++) {
        expect(DEVICE, in[i], BYTES, 2 * i + 1 - rank);
        expect(DEVICE, in[MESSAGES + i], BYTES, 2 * i + rank);
    }
    OK(MPI_Finalize());
    if (rank == 0) puts("with what there is");
    return 0;
}
