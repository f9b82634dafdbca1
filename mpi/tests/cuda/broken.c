/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Faults of a device are errors that name them, of the call whose memory it was. The job goes on. With a second argument
 * the messages are so many bytes long, and a device breaks after so many copies of one.
 */
#include "buffers.h"

int main(int argc, char **argv) {
    int rank, length, fault = argc > 1 ? atoi(argv[1]) : MODEL_ILLEGAL_ADDRESS;
    char text[MPI_MAX_ERROR_STRING];
    const char *name = fault == MODEL_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                                      : "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    const size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 100000;
    const int after = argc > 3 ? atoi(argv[3]) : 0, is_long = argc > 2;
    char *plain = malloc(bytes + 1);
    CHECK(plain);
    memset(plain, 1, bytes);
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(begin());
    CUdeviceptr data;
    CU(cuMemAlloc_v2(&data, bytes));
    void *device = (void *)(uintptr_t)data;
    int code;
    if (rank == 0) {
        /* Beyond the allocation: this call alone fails. */
        code = MPI_Send(device, (int)bytes + 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        CHECK(class_of(code) == MPI_ERR_OTHER);
        OK(MPI_Send(device, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD));
        cuModelFault(fault, after);
        code = MPI_Send(device, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    } else {
        /* What a sender cannot read is an error of its receiver, too, if that was promised it. */
        if (is_long) {
            code = MPI_Recv(plain, (int)bytes + 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(code != MPI_SUCCESS);
        }
        OK(MPI_Recv(plain, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (is_long) {
            code = MPI_Recv(plain, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(code != MPI_SUCCESS);
        }
        cuModelFault(fault, after);
        code = MPI_Recv(device, (int)bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (rank == 0) OK(MPI_Send(plain, (int)bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD));
    CHECK(class_of(code) == MPI_ERR_OTHER);
    OK(MPI_Error_string(code, text, &length));
    if (!strstr(text, name)) {
        fprintf(stderr, "%s\n", text);
        MPI_Abort(MPI_COMM_WORLD, 98);
    }
    /* Memory of the host goes as before. */
    OK(MPI_Bcast(plain, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
    OK(MPI_Finalize());
    if (rank == 0) puts("named");
    return 0;
}
