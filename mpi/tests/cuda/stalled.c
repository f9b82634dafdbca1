/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A driver keeps a thread of rank 0 in a call, while that thread waits for a message or a collective of a device's
 * memory. Its other thread goes on, and lets the driver return after many messages.
 */
#include "buffers.h"
#include <pthread.h>
#include <sched.h>

enum { BYTES = 3 << 20, TRIPS = 200 };

static CUdeviceptr data;

static void trips(int rank) {
    int word = 0;
    for (int trip = 0; trip < TRIPS; trip++) {
        if (rank == 0) OK(MPI_Send(&word, 1, MPI_INT, 1, 2, MPI_COMM_WORLD));
        OK(MPI_Recv(&word, 1, MPI_INT, 1 - rank, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (rank == 1) OK(MPI_Send(&word, 1, MPI_INT, 0, 2, MPI_COMM_WORLD));
    }
}

static void *wait_for(void *request) {
    CU(cuCtxSetCurrent(context));
    OK(MPI_Wait(request, MPI_STATUS_IGNORE));
    return NULL;
}

int main(int argc, char **argv) {
    int rank, level;
    void *buffer;
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK(level == MPI_THREAD_MULTIPLE && begin());
    CU(cuMemAlloc_v2(&data, BYTES));
    buffer = (void *)(uintptr_t)data;
    for (int turn = 0; turn < 4; turn++) {
        MPI_Request request;
        pthread_t waits;
        fill(DEVICE, buffer, BYTES, rank == 0 && turn % 2 == 0 ? 9 : turn);
        if (turn % 2 == 0) {
            if (rank == 0) OK(MPI_Irecv(buffer, BYTES, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &request));
            else OK(MPI_Isend(buffer, BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &request));
        } else {
            OK(MPI_Iallreduce(MPI_IN_PLACE, buffer, BYTES, MPI_SIGNED_CHAR, MPI_MAX, MPI_COMM_WORLD, &request));
        }
        if (rank == 0) cuModelStall(1);
        CHECK(pthread_create(&waits, NULL, wait_for, &request) == 0);
        /* From then on no other thread is needed for devices. */
        while (rank == 0 && cuModelStalled() == 0) sched_yield();
        trips(rank);
        if (rank == 0) cuModelStall(0);
        CHECK(pthread_join(waits, NULL) == 0);
        expect(DEVICE, buffer, BYTES, turn);
    }
    OK(MPI_Finalize());
    if (rank == 0) puts("not kept");
    return 0;
}
