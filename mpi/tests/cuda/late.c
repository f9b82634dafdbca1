/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The driver is loaded long after MPI_Init, as an interpreter loads it. It is loaded by its name, or by the path in the
 * argument where the name alone finds none. Then allocations come and go, and addresses are given out again for memory
 * of another kind.
 */
#include "../programs/check.h"
#include "driver.h"
#include "mpi-ext.h"

#include <dlfcn.h>

#define CU(name, ...) CHECK(((__typeof__(&name))dlsym(driver, #name))(__VA_ARGS__) == 0)

enum { BYTES = 4096, TURNS = 3000 };

int main(int argc, char **argv) {
    static char sent[BYTES], got[BYTES];
    int rank, again = 0;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    for (int turn = 0; turn < 500; turn++) {
        OK(MPI_Sendrecv(sent, BYTES, MPI_BYTE, 1 - rank, 1, got, BYTES, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD,
                        MPI_STATUS_IGNORE));
    }
    /* A driver that is missing now may be there later. */
    (void)MPIX_Query_cuda_support();
    void *driver = dlopen(argc > 1 ? argv[1] : "libcuda.so.1", RTLD_NOW);
    CHECK(driver);
    CUcontext context;
    CU(cuInit, 0);
    CU(cuDevicePrimaryCtxRetain, &context, 0);
    CU(cuCtxSetCurrent, context);
    CUdeviceptr last = 0, address[2];
    for (int turn = 0; turn < TURNS; turn++) {
        int managed = turn % 3 == 0;
        if (managed) CU(cuMemAllocManaged, &address[0], BYTES, CU_MEM_ATTACH_GLOBAL);
        else CU(cuMemAlloc_v2, &address[0], BYTES);
        CU(cuMemAlloc_v2, &address[1], BYTES);
        again += address[0] == last;
        last = address[0];
        memset(sent, turn + rank, BYTES);
        CU(cuMemcpyHtoD_v2, address[0], sent, BYTES);
        OK(MPI_Sendrecv((void *)(uintptr_t)address[0], BYTES, MPI_BYTE, 1 - rank, 1, (void *)(uintptr_t)address[1],
                        BYTES, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        CU(cuMemcpyDtoH_v2, got, address[1], BYTES);
        for (int at = 0; at < BYTES; at++) CHECK(got[at] == (char)(turn + 1 - rank));
        CU(cuMemFree_v2, address[0]);
        CU(cuMemFree_v2, address[1]);
    }
    CHECK(again > TURNS / 2);
    OK(MPI_Finalize());
    if (rank == 0) puts("late");
    return 0;
}
