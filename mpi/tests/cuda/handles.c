/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the driver in software does with handles of memory, which the other tests rely on. The library sends host memory
 * here alone.
 */
#include "buffers.h"

enum { BYTES = 1 << 20, LAZILY = 1 };

int main(int argc, char **argv) {
    CUipcMemHandle handle, wrong;
    CUdeviceptr data, first, second;
    CUcontext own;
    CUstream stream;
    int rank;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK(begin());
    if (rank == 0) {
        CU(cuMemAlloc_v2(&data, BYTES));
        fill(DEVICE, (char *)(uintptr_t)data, BYTES, 3);
        CHECK(cuIpcGetMemHandle(&handle, data + 1) != 0);
        CU(cuIpcGetMemHandle(&handle, data));
        CHECK(cuIpcOpenMemHandle_v2(&first, handle, LAZILY) != 0);
        char *others[] = { buffer(MANAGED), buffer(POOLED), buffer(MAPPED), buffer(PINNED) };
        for (int i = 0; i < 4; i++) CHECK(cuIpcGetMemHandle(&wrong, (uintptr_t)others[i]) != 0);
        OK(MPI_Send(&handle, sizeof(handle), MPI_BYTE, 1, 1, MPI_COMM_WORLD));
        OK(MPI_Recv(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        /* It stays as long as the other one has it open, and no longer than that. */
        CU(cuMemFree_v2(data));
        CU(cuMemAlloc_v2(&data, BYTES));
        fill(DEVICE, (char *)(uintptr_t)data, BYTES, 4);
        OK(MPI_Send(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD));
        OK(MPI_Recv(NULL, 0, MPI_BYTE, 1, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    } else {
        OK(MPI_Recv(&handle, sizeof(handle), MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        memset(&wrong, 0x5a, sizeof(wrong));
        CHECK(cuIpcOpenMemHandle_v2(&first, wrong, LAZILY) != 0);
        CU(cuIpcOpenMemHandle_v2(&first, handle, LAZILY));
        CU(cuIpcOpenMemHandle_v2(&second, handle, LAZILY));
        CHECK(first == second && cuModelMappings() == 1 && cuModelOpenings() == 1);
        CHECK(cuIpcGetMemHandle(&wrong, first) != 0);
        /* One context of a device alone. */
        CU(cuCtxCreate_v2(&own, 0, 0));
        CHECK(cuIpcOpenMemHandle_v2(&second, handle, LAZILY) != 0);
        CU(cuCtxDestroy_v2(own));
        CU(cuCtxSetCurrent(context));
        expect(DEVICE, (char *)(uintptr_t)first, BYTES, 3);
        OK(MPI_Send(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD));
        OK(MPI_Recv(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        expect(DEVICE, (char *)(uintptr_t)first, BYTES, 3);
        CU(cuIpcCloseMemHandle(first));
        expect(DEVICE, (char *)(uintptr_t)first, BYTES, 3);
        /* While work names it, closing is an error that is counted. */
        CU(cuMemAlloc_v2(&data, BYTES));
        CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        cuModelHold(0, 1);
        CU(cuMemcpyDtoDAsync_v2(data, first, BYTES, stream));
        CHECK(cuModelMisuses() == 0 && cuIpcCloseMemHandle(first) != 0 && cuModelMisuses() == 1);
        cuModelHold(0, 0);
        CU(cuStreamSynchronize(stream));
        expect(DEVICE, (char *)(uintptr_t)data, BYTES, 3);
        CU(cuIpcCloseMemHandle(first));
        CHECK(cuModelMappings() == 0 && cuIpcCloseMemHandle(first) != 0);
        /* What is gone is not found, though its place is in use again. */
        CHECK(cuIpcOpenMemHandle_v2(&first, handle, LAZILY) != 0);
        OK(MPI_Send(NULL, 0, MPI_BYTE, 0, 4, MPI_COMM_WORLD));
    }
    OK(MPI_Finalize());
    if (rank == 0) puts("strict");
    return 0;
}
