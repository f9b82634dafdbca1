/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that other processes open by a descriptor: of pools, and of virtual addresses. The first argument says what is
 * done with it:
 *
 * kinds: between all kinds of memory, and from and to buffers in two allocations side by side. With another argument,
 *     each rank has a device of its own.
 * churn: allocations come and go as often as the second argument says. Each is where the one before was.
 * refused: the kernel gives out no descriptor of another process; all is staged.
 * scarce: there are no descriptors left for a while, at the sender's or the receiver's.
 * unseen: messages of a rank to itself, and to another node. The driver is never asked to show their memory.
 */
#define _GNU_SOURCE
#include "buffers.h"

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LEN = 2 << 20, TURNS = 8 };

/* What a buffer is of. */
enum { HOST, PLAIN_DEVICE, POOL, MEMORY, TWO, ALL };

static int rank, other;
static CUmemoryPool pool;

static char *buffer_of(int what) {
    CUdeviceptr address = 0;
    switch (what) {
    case HOST: return malloc(LEN);
    case PLAIN_DEVICE: CU(cuMemAlloc_v2(&address, LEN)); break;
    case POOL: address = from_pool(pool, LEN); break;
    case MEMORY:
        CU(cuMemAddressReserve(&address, LEN, 0, 0, 0));
        map_at(address, LEN, BY_DESCRIPTOR);
        break;
    default:
        CU(cuMemAddressReserve(&address, 2 * LEN, 0, 0, 0));
        map_at(address, LEN, BY_DESCRIPTOR);
        map_at(address + LEN, LEN, BY_DESCRIPTOR);
        address += LEN / 2;
    }
    return (char *)(uintptr_t)address;
}

static enum kind kind_of(int what) { return what == HOST ? PLAIN : what == TWO ? MAPPED : DEVICE; }

/* Both ways at once. */
static void exchange(int from, char *out, int to, char *in, int seed) {
    MPI_Request requests[2];
    fill(kind_of(from), out, LEN, seed + rank);
    fill(kind_of(to), in, LEN, seed + 50);
    OK(MPI_Irecv(in, LEN, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Isend(out, LEN, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[1]));
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    expect(kind_of(to), in, LEN, seed + other);
}

/* A device that is late lets a message go through the host: so not all are asked for, but most. */
static void expect_copies(unsigned long before, int messages) {
    unsigned long seen = cuModelBetween() - before;
    if (2 * seen < (unsigned long)messages || seen > (unsigned long)messages)
        fprintf(stderr, "rank %d: %lu copies for %d messages\n", rank, seen, messages);
    CHECK(2 * seen >= (unsigned long)messages && seen <= (unsigned long)messages);
}

static void kinds(void) {
    char *out[ALL], *in[ALL];
    for (int what = HOST; what < ALL; what++) {
        out[what] = buffer_of(what);
        in[what] = buffer_of(what);
    }
    for (int from = HOST; from < ALL; from++) {
        for (int to = HOST; to < ALL; to++) {
            int is_once = from > HOST && from < TWO && to > HOST && to < TWO;
            unsigned long before = cuModelBetween();
            for (int turn = 0; turn < TURNS; turn++) exchange(from, out[from], to, in[to], turn + 3 * from + to);
            if (is_once) expect_copies(before, TURNS);
            else CHECK(cuModelBetween() == before);
        }
    }
    CU(cuMemFree_v2((uintptr_t)out[POOL]));
    CU(cuMemFree_v2((uintptr_t)in[POOL]));
}

static void unseen(void) {
    char *in = buffer_of(PLAIN_DEVICE);
    int peers[] = { rank, other };
    for (int what = PLAIN_DEVICE; what < ALL; what++) {
        char *out = buffer_of(what);
        for (int peer = 0; peer < 2; peer++) {
            other = peers[peer];
            exchange(what, out, PLAIN_DEVICE, in, 3 * what + peer);
        }
        if (what == POOL) CU(cuMemFree_v2((uintptr_t)out));
    }
    CHECK(cuModelShowings() == 0);
}

/* Descriptors of this process. */
static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static void churn(int turns) {
    CUdeviceptr place = 0, last = 0;
    int again = 0, most = 0, before = descriptors();
    unsigned long begun = cuModelBetween();
    char *in = buffer_of(PLAIN_DEVICE);
    CU(cuMemAddressReserve(&place, LEN, 0, 0, 0));
    enum { SPAN = 4096 };
    for (int turn = 0; turn < turns; turn++) {
        if (rank == 0) {
            CUmemoryPool fresh = turn % 2 ? new_pool(BY_DESCRIPTOR) : NULL;
            CUdeviceptr address = place;
            if (fresh) address = from_pool(fresh, LEN);
            else map_at(place, LEN, BY_DESCRIPTOR);
            char *out = (char *)(uintptr_t)address;
            fill(DEVICE, out, SPAN, turn);
            fill(DEVICE, out + LEN - SPAN, SPAN, turn + 1);
            OK(MPI_Send(out, LEN, MPI_BYTE, 1, 1, MPI_COMM_WORLD));
            if (fresh) {
                again += address == last;
                last = address;
                CU(cuMemFreeAsync(address, CU_STREAM_PER_THREAD));
                CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
                CU(cuMemPoolDestroy(fresh));
            } else {
                CU(cuMemUnmap(place, LEN));
            }
        } else {
            OK(MPI_Recv(in, LEN, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            expect(DEVICE, in, SPAN, turn);
            expect(DEVICE, in + LEN - SPAN, SPAN, turn + 1);
        }
        int now = descriptors();
        most = now > most ? now : most;
    }
    fprintf(stderr, "rank %d: %d descriptors, %d at most, %lu copies\n", rank, before, most, cuModelBetween() - begun);
    /* Beside those of the library, each thing of the driver in software has one. */
    CHECK(most <= before + 200);
    if (rank == 0) CHECK(again > turns / 4);
    if (rank == 1) CHECK(cuModelBetween() - begun >= (unsigned long)turns / 2);
}

/* Of this process, from now on. */
static void forbid(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof(rules) / sizeof(*rules), rules };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

static void refused(void) {
    char *out[] = { buffer_of(POOL), buffer_of(MEMORY), buffer_of(PLAIN_DEVICE) }, *in = buffer_of(PLAIN_DEVICE);
    forbid();
    unsigned long before = cuModelBetween();
    for (int turn = 0; turn < 8 * TURNS; turn++) exchange(DEVICE, out[turn % 2], PLAIN_DEVICE, in, turn);
    CHECK(cuModelBetween() == before);
    /* Handles of the driver need no descriptor. */
    for (int turn = 0; turn < TURNS; turn++) exchange(DEVICE, out[2], PLAIN_DEVICE, in, turn);
    expect_copies(before, TURNS);
    CU(cuMemFree_v2((uintptr_t)out[0]));
}

static void scarce(void) {
    char *out[] = { buffer_of(POOL), buffer_of(MEMORY) }, *in = buffer_of(PLAIN_DEVICE);
    struct rlimit limit, none;
    /* All else is there. */
    char *plain = buffer_of(PLAIN_DEVICE);
    for (int turn = 0; turn < TURNS; turn++) exchange(PLAIN_DEVICE, plain, PLAIN_DEVICE, in, turn);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int who = 0; who < 2; who++) {
        int lowest = dup(0);
        CHECK(lowest >= 0);
        close(lowest);
        none = limit;
        none.rlim_cur = (rlim_t)lowest;
        if (who == rank) CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
        OK(MPI_Barrier(MPI_COMM_WORLD));
        unsigned long before = cuModelBetween();
        for (int turn = 0; turn < TURNS; turn++) exchange(DEVICE, out[turn % 2], PLAIN_DEVICE, in, turn);
        if (who == rank) CHECK(cuModelBetween() == before);
        OK(MPI_Barrier(MPI_COMM_WORLD));
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    /* Then it is seen that there are some again. */
    for (int turn = 0; turn < 30 * TURNS / 2; turn++) exchange(DEVICE, out[1], PLAIN_DEVICE, in, turn);
    unsigned long before = cuModelBetween();
    for (int turn = 0; turn < TURNS; turn++) exchange(DEVICE, out[turn % 2], PLAIN_DEVICE, in, turn);
    expect_copies(before, TURNS);
    CU(cuMemFree_v2((uintptr_t)out[0]));
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    other = 1 - rank;
    CHECK(begin());
    if (argc > 2 && strcmp(argv[2], "apart") == 0 && rank == 1) {
        device = 1;
        CU(cuDevicePrimaryCtxRetain(&context, device));
        CU(cuCtxSetCurrent(context));
    }
    pool = new_pool(BY_DESCRIPTOR);
    if (strcmp(argv[1], "kinds") == 0) kinds();
    else if (strcmp(argv[1], "churn") == 0) churn(argc > 2 ? atoi(argv[2]) : 100);
    else if (strcmp(argv[1], "refused") == 0) refused();
    else if (strcmp(argv[1], "unseen") == 0) unseen();
    else scarce();
    OK(MPI_Barrier(MPI_COMM_WORLD));
    CHECK(cuModelMisuses() == 0);
    OK(MPI_Finalize());
    if (rank == 0) puts("by descriptors");
    return 0;
}
