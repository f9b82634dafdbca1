/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Faults of a device are errors that name them, of the call whose memory it was. The job goes on. */
#include "buffers.h"

int main(int argc, char **argv) {
    int rank, length, fault = argc > 1 ? atoi(argv[1]) : MODEL_ILLEGAL_ADDRESS;
    char text[MPI_MAX_ERROR_STRING];
    const char *name = fault == MODEL_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                                      : "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    static char plain[100000];
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(begin());
    CUdeviceptr data;
    CU(cuMemAlloc_v2(&data, sizeof(plain)));
    void *device = (void *)(uintptr_t)data;
    int code;
    if (rank == 0) {
        /* Beyond the allocation: this call alone fails. */
        code = MPI_Send(device, sizeof(plain) + 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        CHECK(class_of(code) == MPI_ERR_OTHER);
        OK(MPI_Send(device, sizeof(plain), MPI_BYTE, 1, 1, MPI_COMM_WORLD));
        cuModelFault(fault, 0);
        code = MPI_Send(device, sizeof(plain), MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    } else {
        OK(MPI_Recv(plain, sizeof(plain), MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        cuModelFault(fault, 0);
        code = MPI_Recv(device, sizeof(plain), MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (rank == 0) OK(MPI_Send(plain, sizeof(plain), MPI_BYTE, 1, 2, MPI_COMM_WORLD));
    CHECK(class_of(code) == MPI_ERR_OTHER);
    OK(MPI_Error_string(code, text, &length));
    if (!strstr(text, name)) {
        fprintf(stderr, "%s\n", text);
        MPI_Abort(MPI_COMM_WORLD, 98);
    }
    /* Memory of the host goes as before. */
    OK(MPI_Bcast(plain, sizeof(plain), MPI_BYTE, 0, MPI_COMM_WORLD));
    OK(MPI_Finalize());
    if (rank == 0) puts("named");
    return 0;
}
