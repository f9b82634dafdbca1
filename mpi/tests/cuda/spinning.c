/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A kernel occupies the whole device until an answer is in the device's memory. Meanwhile the program sends memory of
 * the device and receives that answer, receives memory of another rank's device, or sends to itself. A library that
 * waits for the device never comes back, nor does one that begins a copy which the kernel lets not end.
 */
#include "buffers.h"

enum { LONGEST = 64 << 20, ANSWER = 7 };

static char *host;

static void fill_device(CUdeviceptr to, size_t bytes, int seed) {
    for (size_t at = 0; at < bytes; at++) host[at] = value(at, seed);
    CU(cuMemcpyHtoD_v2(to, host, bytes));
}

static void expect_device(CUdeviceptr from, size_t bytes, int seed) {
    memset(host, 0, bytes);
    CU(cuMemcpyDtoH_v2(host, from, bytes));
    for (size_t at = 0; at < bytes; at++) CHECK(host[at] == value(at, seed));
}

int main(int argc, char **argv) {
    int rank, answer = ANSWER, zero = 0;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    if (!begin()) {
        if (rank == 0) puts("skipped: no CUDA device");
        OK(MPI_Finalize());
        return 0;
    }
    CUdeviceptr data, more, word;
    CUmodule module;
    CUfunction spin;
    CHECK((host = malloc(LONGEST)));
    CU(cuMemAlloc_v2(&data, LONGEST));
    CU(cuMemAlloc_v2(&more, LONGEST));
    CU(cuMemAlloc_v2(&word, sizeof(int)));
    CU(cuModuleLoadData(&module, SPIN_PTX));
    CU(cuModuleGetFunction(&spin, module, "spin"));
    CUstream streams[2] = { NULL, CU_STREAM_PER_THREAD };
    int turn = 0;
    for (size_t bytes = 8; bytes <= LONGEST; bytes *= 8, turn++) {
        for (int way = 0; way < 4; way++) {
            if (rank == 0) {
                CUstream stream = streams[(turn + way) % 2];
                unsigned int until = ANSWER;
                void *parameters[2] = { &word, &until };
                fill_device(data, bytes, turn);
                CU(cuMemcpyHtoD_v2(word, &zero, sizeof(zero)));
                CU(cuLaunchKernel(spin, 4096, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
                void *from = (void *)(uintptr_t)data, *to = (void *)(uintptr_t)word;
                if (way == 0) {
                    OK(MPI_Send(from, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD));
                    OK(MPI_Recv(to, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
                } else if (way == 2) {
                    /* The other way: what comes is another rank's. */
                    OK(MPI_Recv((void *)(uintptr_t)more, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
                    OK(MPI_Recv(to, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
                } else if (way == 3) {
                    OK(MPI_Sendrecv(from, (int)bytes, MPI_BYTE, 0, 3, (void *)(uintptr_t)more, (int)bytes, MPI_BYTE, 0,
                                    3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
                    OK(MPI_Recv(to, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
                } else {
                    MPI_Request requests[2];
                    OK(MPI_Irecv(to, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, &requests[0]));
                    OK(MPI_Isend(from, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[1]));
                    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
                }
                /* Now the kernel ends. */
                CU(cuStreamSynchronize(stream));
                if (way > 1) expect_device(more, bytes, turn + 200 * (way == 2));
            } else if (way == 2) {
                fill_device(data, bytes, turn + 200);
                OK(MPI_Send((void *)(uintptr_t)data, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD));
                OK(MPI_Send(&answer, 1, MPI_INT, 0, 2, MPI_COMM_WORLD));
            } else if (way == 3) {
                OK(MPI_Send(&answer, 1, MPI_INT, 0, 2, MPI_COMM_WORLD));
            } else {
                fill_device(data, bytes, 100);
                OK(MPI_Recv((void *)(uintptr_t)data, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD,
                            MPI_STATUS_IGNORE));
                expect_device(data, bytes, turn);
                OK(MPI_Send(&answer, 1, MPI_INT, 0, 2, MPI_COMM_WORLD));
            }
        }
    }
    OK(MPI_Finalize());
    if (rank == 0) puts("every length");
    return 0;
}
