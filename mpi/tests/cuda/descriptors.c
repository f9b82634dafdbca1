/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the driver in software does with memory that is shown by descriptors, which the other tests rely on. The library
 * sends host memory here alone.
 */
#define _GNU_SOURCE
#include "buffers.h"

#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 2 << 20 };

struct offer {
    int pid, memory, pool;
    CUmemPoolPtrExportData data, freed;
};

static int taken(int pid, int fd) {
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int got = (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    CHECK(process >= 0 && got >= 0);
    close(process);
    return got;
}

/* A copy breaks its context if it touches what its device may not. */
static int is_in_reach(CUdeviceptr address) {
    CUcontext own;
    char byte;
    CU(cuCtxCreate_v2(&own, 0, device));
    int good = cuMemcpyDtoH_v2(&byte, address, 1) == 0;
    CU(cuCtxDestroy_v2(own));
    CU(cuCtxSetCurrent(context));
    return good;
}

static void show(void) {
    struct offer offer = { .pid = getpid() };
    CUmemGenericAllocationHandle hidden = physical(BYTES, NOT_SHOWN), memory = physical(BYTES, BY_DESCRIPTOR), again;
    CUmemAccessDesc access = { { 1, device }, 3 };
    CUmemAllocationProp prop;
    CUdeviceptr place, data, gone;
    CUmemoryPool pool = new_pool(BY_DESCRIPTOR), secret = new_pool(NOT_SHOWN);
    CHECK(cuMemExportToShareableHandle(&offer.memory, hidden, BY_DESCRIPTOR, 0) != 0);
    CHECK(cuMemExportToShareableHandle(&offer.memory, memory, 2, 0) != 0);
    CHECK(cuMemPoolExportToShareableHandle(&offer.pool, secret, BY_DESCRIPTOR, 0) != 0);
    CHECK(cuMemPoolExportPointer(&offer.data, from_pool(secret, BYTES)) != 0);
    CU(cuMemGetAllocationPropertiesFromHandle(&prop, hidden));
    CHECK(prop.requestedHandleTypes == 0 && prop.location.id == device);
    /* A mapping begins without access. A handle lives as long as it is held or mapped. */
    CU(cuMemAddressReserve(&place, 2 * BYTES, 0, 0, 0));
    CHECK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)place) != 0);
    CHECK(cuMemMap(place, 2 * BYTES, 0, memory, 0) != 0);
    CU(cuMemMap(place, BYTES, 0, memory, 0));
    CHECK(cuMemMap(place, BYTES, 0, hidden, 0) != 0);
    CHECK(!is_in_reach(place));
    CHECK(cuMemSetAccess(place, 2 * BYTES, &access, 1) != 0);
    CU(cuMemSetAccess(place, BYTES, &access, 1));
    CHECK(is_in_reach(place));
    CU(cuMemRelease(memory));
    CU(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(place + BYTES - 1)));
    CHECK(again == memory && physical(BYTES, NOT_SHOWN) != memory);
    CU(cuMemExportToShareableHandle(&offer.memory, again, BY_DESCRIPTOR, 0));
    fill(DEVICE, (char *)(uintptr_t)place, BYTES, 3);
    data = from_pool(pool, BYTES);
    gone = from_pool(pool, BYTES);
    fill(DEVICE, (char *)(uintptr_t)data, BYTES, 4);
    CU(cuMemPoolExportToShareableHandle(&offer.pool, pool, BY_DESCRIPTOR, 0));
    CU(cuMemPoolExportPointer(&offer.data, data));
    CU(cuMemPoolExportPointer(&offer.freed, gone));
    CHECK(cuMemPoolExportPointer(&offer.freed, gone + 1) != 0);
    CU(cuMemPoolExportPointer(&offer.freed, gone));
    CU(cuMemFree_v2(gone));
    OK(MPI_Send(&offer, sizeof(offer), MPI_BYTE, 1, 1, MPI_COMM_WORLD));
    OK(MPI_Recv(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    /* What is mapped elsewhere stays there; what is imported from a pool is not to be freed. */
    CHECK(cuModelMisuses() == 0);
    CHECK(cuMemUnmap(place, BYTES / 2) != 0 && cuModelMisuses() == 1);
    CU(cuMemUnmap(place, BYTES));
    CU(cuMemRelease(again));
    CHECK(cuMemRelease(again) != 0 && cuModelMisuses() == 2);
    CHECK(cuMemAddressFree(place, BYTES) != 0 && cuModelMisuses() == 3);
    CU(cuMemAddressFree(place, 2 * BYTES));
    close(offer.memory);
    CU(cuMemFree_v2(data));
    CHECK(cuModelMisuses() == 4);
    OK(MPI_Send(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD));
}

static void look(void) {
    struct offer offer;
    CUmemGenericAllocationHandle memory;
    CUmemAccessDesc access = { { 1, device }, 3 };
    CUdeviceptr place, data;
    CUmemoryPool pool;
    OK(MPI_Recv(&offer, sizeof(offer), MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    int of_memory = taken(offer.pid, offer.memory), of_pool = taken(offer.pid, offer.pool);
    void *one = (void *)(intptr_t)of_memory, *other = (void *)(intptr_t)of_pool;
    CHECK(cuMemImportFromShareableHandle(&memory, other, BY_DESCRIPTOR) != 0);
    CHECK(cuMemImportFromShareableHandle(&memory, (void *)0, BY_DESCRIPTOR) != 0);
    CHECK(cuMemPoolImportFromShareableHandle(&pool, one, BY_DESCRIPTOR, 0) != 0);
    CU(cuMemImportFromShareableHandle(&memory, one, BY_DESCRIPTOR));
    CU(cuMemPoolImportFromShareableHandle(&pool, other, BY_DESCRIPTOR, 0));
    close(of_memory);
    close(of_pool);
    CU(cuMemAddressReserve(&place, 2 * BYTES, 0, 0, 0));
    CHECK(cuMemMap(place, 2 * BYTES, 0, memory, 0) != 0);
    CU(cuMemMap(place, BYTES, 0, memory, 0));
    CU(cuMemRelease(memory));
    CHECK(!is_in_reach(place));
    CU(cuMemSetAccess(place, BYTES, &access, 1));
    expect(DEVICE, (char *)(uintptr_t)place, BYTES, 3);
    CHECK(cuMemPoolImportPointer(&data, pool, &offer.freed) != 0);
    CU(cuMemPoolImportPointer(&data, pool, &offer.data));
    CHECK(cuMemPoolImportPointer(&data, pool, &offer.data) != 0);
    CHECK(cuModelMappings() == 2);
    expect(DEVICE, (char *)(uintptr_t)data, BYTES, 4);
    CHECK(cuMemAllocFromPoolAsync(&data, BYTES, pool, CU_STREAM_PER_THREAD) != 0);
    OK(MPI_Send(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD));
    OK(MPI_Recv(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    expect(DEVICE, (char *)(uintptr_t)place, BYTES, 3);
    CU(cuMemUnmap(place, BYTES));
    CU(cuMemAddressFree(place, 2 * BYTES));
    CU(cuMemFreeAsync(data, CU_STREAM_PER_THREAD));
    CU(cuMemPoolDestroy(pool));
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    CHECK(cuModelMappings() == 0 && cuModelMisuses() == 0);
}

int main(int argc, char **argv) {
    int rank;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK(begin());
    if (rank == 0) show();
    else look();
    OK(MPI_Finalize());
    if (rank == 0) puts("strict");
    return 0;
}
