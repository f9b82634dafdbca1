/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The last of three ranks is killed from outside while it exchanges long messages of devices with the others. They are
 * told, keep no memory for it, and go on with each other.
 */
#include "buffers.h"

enum { BYTES = 5 << 20, ROUNDS = 12, MIB = 1 << 20 };

static CUdeviceptr data;

static char *at(size_t offset) { return (char *)(uintptr_t)data + offset; }

static void fill_long(size_t offset, int seed) {
    for (size_t done = 0; done < BYTES; done += MIB) fill(DEVICE, at(offset + done), MIB, seed + (int)(done / MIB));
}

static void expect_long(size_t offset, int seed) {
    for (size_t done = 0; done < BYTES; done += MIB) expect(DEVICE, at(offset + done), MIB, seed + (int)(done / MIB));
}

int main(int argc, char **argv) {
    int rank, size, failed = 0;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(size == 3 && begin());
    CU(cuMemAlloc_v2(&data, 3 * BYTES));
    for (int round = 0; round < ROUNDS && !failed; round++) {
        MPI_Request requests[4];
        int count = 0;
        fill_long(0, rank * 10);
        for (int peer = 0; peer < 3; peer++) {
            if (peer == rank || (rank < 2 && peer < 2)) continue;
            char *in = at(BYTES + (rank == 2 ? (size_t)peer * BYTES : 0));
            failed |= MPI_Irecv(in, BYTES, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]) != MPI_SUCCESS;
            failed |= MPI_Isend(at(0), BYTES, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]) != MPI_SUCCESS;
        }
        for (int i = 0; i < count; i++) failed |= MPI_Wait(&requests[i], MPI_STATUS_IGNORE) != MPI_SUCCESS;
        if (!failed) expect_long(BYTES, rank == 2 ? 0 : 20);
    }
    if (rank == 2) {
        puts("nobody died");
        MPI_Finalize();
        return 0;
    }
    for (int round = 0; round < 4; round++) {
        if (rank == 0) {
            fill_long(0, 50 + round);
            OK(MPI_Send(at(0), BYTES, MPI_BYTE, 1, 2, MPI_COMM_WORLD));
            OK(MPI_Recv(at(BYTES), BYTES, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            expect_long(BYTES, 70 + round);
        } else {
            OK(MPI_Recv(at(BYTES), BYTES, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            expect_long(BYTES, 50 + round);
            fill_long(0, 70 + round);
            OK(MPI_Send(at(0), BYTES, MPI_BYTE, 0, 2, MPI_COMM_WORLD));
        }
    }
    CHECK(cuModelRegistered() <= 2 * MIB);
    printf("rank %d is well\n", rank);
    fflush(stdout);
    MPI_Finalize();
    exit(0);
}
