/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory is freed, or its context ends, while a message of it is under way. The operation whose memory it was ends with
 * an error that says so. The process lives, and the job goes on.
 */
#include "buffers.h"

enum { BYTES = 6 << 20, READY = 1, DATA = 2 };

static CUcontext other;

static void *foreign(void) {
    CUdeviceptr address;
    CU(cuCtxCreate_v2(&other, 0, 0));
    CU(cuMemAlloc_v2(&address, BYTES));
    return (void *)(uintptr_t)address;
}

static void end(void *memory, int frees) {
    if (frees) CU(cuMemFree_v2((uintptr_t)memory));
    CU(cuCtxDestroy_v2(other));
    CU(cuCtxSetCurrent(context));
}

static void fails(MPI_Request *request) {
    static const char *const reasons[] = { "neither the host nor a device has memory there",
                                           "CUDA_ERROR_CONTEXT_IS_DESTROYED", "CUDA_ERROR_INVALID_VALUE" };
    char text[MPI_MAX_ERROR_STRING];
    int length, known = 0, code = MPI_Wait(request, MPI_STATUS_IGNORE);
    CHECK(class_of(code) == MPI_ERR_OTHER);
    OK(MPI_Error_string(code, text, &length));
    for (size_t i = 0; i < sizeof(reasons) / sizeof(*reasons); i++) known |= strstr(text, reasons[i]) != NULL;
    if (!known) fprintf(stderr, "%s\n", text);
    CHECK(known);
}

int main(int argc, char **argv) {
    char *plain = malloc(BYTES), word = 0;
    int rank, frees = argc > 1;
    MPI_Request request;
    CHECK(plain);
    memset(plain, 1, BYTES);
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(begin());
    for (int sender = 0; sender < 2; sender++) {
        int peer = 1 - rank;
        /* The sender's memory goes once the message is announced. */
        if (rank == sender) {
            void *memory = foreign();
            OK(MPI_Isend(memory, BYTES, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &request));
            end(memory, frees);
            OK(MPI_Send(&word, 1, MPI_BYTE, peer, READY, MPI_COMM_WORLD));
            fails(&request);
        } else {
            OK(MPI_Recv(&word, 1, MPI_BYTE, peer, READY, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            CHECK(MPI_Recv(plain, BYTES, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE) != MPI_SUCCESS);
        }
        /* The receiver's memory goes before the message comes. */
        if (rank == sender) {
            OK(MPI_Recv(&word, 1, MPI_BYTE, peer, READY, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            OK(MPI_Send(plain, BYTES, MPI_BYTE, peer, DATA, MPI_COMM_WORLD));
        } else {
            void *memory = foreign();
            OK(MPI_Irecv(memory, BYTES, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &request));
            end(memory, frees);
            OK(MPI_Send(&word, 1, MPI_BYTE, peer, READY, MPI_COMM_WORLD));
            fails(&request);
        }
    }
    OK(MPI_Bcast(plain, BYTES, MPI_BYTE, 0, MPI_COMM_WORLD));
    /* What is alive goes as before. */
    CUdeviceptr alive;
    CU(cuMemAlloc_v2(&alive, BYTES));
    void *buffer = (void *)(uintptr_t)alive;
    fill(DEVICE, buffer, BYTES, rank);
    OK(MPI_Sendrecv_replace(buffer, BYTES, MPI_BYTE, 1 - rank, 0, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    expect(DEVICE, buffer, BYTES, 1 - rank);
    OK(MPI_Finalize());
    if (rank == 0) puts("named, and on");
    return 0;
}
