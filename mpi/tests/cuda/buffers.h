/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Buffers of every kind of memory, and what programs do with them through the driver alone. */
#ifndef BUFFERS_H
#define BUFFERS_H

#include "../programs/check.h"
#include "driver.h"

enum kind { PLAIN, PINNED, MANAGED, DEVICE, POOLED, MAPPED, KINDS };

#define CU(call) CHECK((call) == 0)

/* Enough for each buffer here; a multiple of what virtual memory is made in. */
enum { ROOM = 8 << 20 };

static CUcontext context;
static CUdevice device;

/* Begins with the driver; false: there is no device. */
static inline int begin(void) {
    if (cuInit(0) != 0 || cuDeviceGet(&device, 0) != 0) return 0;
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    return 1;
}

/* How memory may be shown to other processes. */
enum { NOT_SHOWN, BY_DESCRIPTOR };

static inline CUmemoryPool new_pool(int shown) {
    CUmemPoolProps props = { .allocType = 1, .handleTypes = shown, .location = { 1, device } };
    CUmemoryPool pool;
    CU(cuMemPoolCreate(&pool, &props));
    return pool;
}

static inline CUdeviceptr from_pool(CUmemoryPool pool, size_t bytes) {
    CUdeviceptr address;
    CU(cuMemAllocFromPoolAsync(&address, bytes, pool, CU_STREAM_PER_THREAD));
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return address;
}

static inline CUmemGenericAllocationHandle physical(size_t bytes, int shown) {
    CUmemAllocationProp prop = { .type = 1, .requestedHandleTypes = shown, .location = { 1, device } };
    CUmemGenericAllocationHandle memory;
    CU(cuMemCreate(&memory, bytes, &prop, 0));
    return memory;
}

/* Maps new memory to reserved addresses. It lives as long as that. */
static inline void map_at(CUdeviceptr address, size_t bytes, int shown) {
    CUmemAccessDesc access = { { 1, device }, 3 };
    CUmemGenericAllocationHandle memory = physical(bytes, shown);
    CU(cuMemMap(address, bytes, 0, memory, 0));
    CU(cuMemRelease(memory));
    CU(cuMemSetAccess(address, bytes, &access, 1));
}

/* Virtual memory in pieces that lie side by side, each an allocation of its own, as frameworks grow their pools. The
 * buffer begins inside of the first one, so that no piece ends where the library's do. */
static inline char *map(size_t bytes) {
    enum { PIECE = 2 << 20, INSIDE = PIECE / 2 + 64 };
    CUdeviceptr address;
    CU(cuMemAddressReserve(&address, bytes + PIECE, 0, 0, 0));
    for (size_t at = 0; at < bytes + PIECE; at += PIECE) map_at(address + at, PIECE, NOT_SHOWN);
    return (char *)(uintptr_t)address + INSIDE;
}

/* Bytes up to the end of a page, where one piece of virtual memory may end. */
static inline size_t piece_of(enum kind kind, const char *at, size_t bytes) {
    size_t rest = 4096 - (uintptr_t)at % 4096;
    return kind == MAPPED && rest < bytes ? rest : bytes;
}

static inline char *buffer(enum kind kind) {
    CUdeviceptr address = 0;
    void *memory = NULL;
    switch (kind) {
    case PLAIN: CHECK((memory = malloc(ROOM))); break;
    case PINNED: CU(cuMemAllocHost_v2(&memory, ROOM)); break;
    case MANAGED: CU(cuMemAllocManaged(&address, ROOM, CU_MEM_ATTACH_GLOBAL)); break;
    case POOLED: CU(cuMemAllocAsync(&address, ROOM, NULL)); break;
    case MAPPED: return map(ROOM);
    default: CU(cuMemAlloc_v2(&address, ROOM)); break;
    }
    CU(cuCtxSynchronize());
    return memory ? memory : (char *)(uintptr_t)address;
}

static inline void write_to(enum kind kind, char *to, const void *from, size_t bytes) {
    if (kind == PLAIN || kind == PINNED) {
        if (bytes) memcpy(to, from, bytes);
        return;
    }
    for (size_t done = 0, n; done < bytes; done += n) {
        n = piece_of(kind, to + done, bytes - done);
        CU(cuMemcpyHtoD_v2((uintptr_t)to + done, (const char *)from + done, n));
    }
}

static inline void read_from(enum kind kind, void *to, const char *from, size_t bytes) {
    if (kind == PLAIN || kind == PINNED) {
        if (bytes) memcpy(to, from, bytes);
        return;
    }
    for (size_t done = 0, n; done < bytes; done += n) {
        n = piece_of(kind, from + done, bytes - done);
        CU(cuMemcpyDtoH_v2((char *)to + done, (uintptr_t)from + done, n));
    }
}

static inline char value(size_t at, int seed) { return (char)(at * 31 ^ at >> 9 ^ seed * 77); }

static char scratch[ROOM];

static inline void fill(enum kind kind, char *to, size_t bytes, int seed) {
    for (size_t at = 0; at < bytes; at++) scratch[at] = value(at, seed);
    write_to(kind, to, scratch, bytes);
}

/* Bytes of a buffer that are not what they should be. */
struct wrong {
    size_t count, first, last;
};

static inline struct wrong wrong_in(enum kind kind, const char *from, size_t bytes, int seed) {
    struct wrong wrong = { 0, 0, 0 };
    memset(scratch, 0x55, bytes);
    read_from(kind, scratch, from, bytes);
    for (size_t at = 0; at < bytes; at++) {
        if (scratch[at] == value(at, seed)) continue;
        if (wrong.count++ == 0) wrong.first = at;
        wrong.last = at;
    }
    return wrong;
}

#define expect(kind, from, bytes, seed) expect_at(__FILE__, __LINE__, kind, from, bytes, seed)

static inline void expect_at(const char *file, int line, enum kind kind, const char *from, size_t bytes, int seed) {
    struct wrong wrong = wrong_in(kind, from, bytes, seed);
    if (wrong.count == 0) return;
    fprintf(stderr, "%s:%d: kind %d: %zu of %zu bytes are wrong, from %zu to %zu: %d, not %d\n", file, line, (int)kind,
            wrong.count, bytes, wrong.first, wrong.last, scratch[wrong.first], value(wrong.first, seed));
    MPI_Abort(MPI_COMM_WORLD, 99);
}

#endif
