/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Rank 1 writes nonsense into its line of the next collective of all ranks. Rank 0 calls that collective: it gets an
 * error, and ends the job with code 42.
 *
 * The arguments: the collective, the kind that the line says, its length, and the first word of its payload. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* As in btl/shm/src/layout.rs and btl/shm/src/coll/channel.rs. */
#define PAGE 4096u
#define CTRL 256u
#define SLOT 64u
#define STAGES 2u

static char *own_segment(void) {
    for (int fd = 3; fd < 256; fd++) {
        char path[64], name[256];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        name[n < 0 ? 0 : n] = 0;
        if (!strstr(name, "memfd:onecopy"))
            continue;
        struct stat found;
        CHECK(fstat(fd, &found) == 0);
        char *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        uint32_t rank;
        memcpy(&rank, at + 8, 4);
        if (rank == 1)
            return at;
        munmap(at, 1 << 20);
    }
    return NULL;
}

static uint64_t page_up(uint64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

static void write_nonsense(uint64_t kind, uint64_t len, uint64_t word) {
    char *segment = own_segment();
    CHECK(segment != NULL);
    uint32_t ranks, slots;
    memcpy(&ranks, segment + 12, 4);
    memcpy(&slots, segment + 16, 4);
    uint64_t rings = page_up(PAGE + (uint64_t)ranks * CTRL);
    char *channel = segment + page_up(rings + (uint64_t)ranks * slots * SLOT);
    volatile uint32_t *done = (volatile uint32_t *)(channel + 64);
    uint32_t next = *done + 1;
    char *lines = channel + 4 * 64 + 2 * STAGES * 64 + 8 * 64;
    volatile uint64_t *line = (volatile uint64_t *)(lines + next % 8 * 64);
    line[1] = *done | kind << 32 | len << 40;
    for (int i = 0; i < 6; i++)
        line[2 + i] = word;
    __atomic_store_n(&line[0], (uint64_t)next << 32 | 1, __ATOMIC_RELEASE);
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    CHECK(argc == 5);
    int rank;
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    static double send[1000], recv[2000];
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == 1) {
        write_nonsense(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0),
                       strtoull(argv[4], NULL, 0));
        /* Ends with an error, or with the job. */
        int code = MPI_Recv(recv, 1, MPI_DOUBLE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(code != MPI_SUCCESS);
        for (;;)
            pause();
    }
    int code = MPI_SUCCESS;
    if (!strcmp(argv[1], "allreduce"))
        code = MPI_Allreduce(send, recv, 7, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(argv[1], "longer"))
        code = MPI_Allreduce(send, recv, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(argv[1], "bcast"))
        code = MPI_Bcast(recv, 1, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    else if (!strcmp(argv[1], "allgather"))
        code = MPI_Allgather(send, 1, MPI_DOUBLE, recv, 1, MPI_DOUBLE, MPI_COMM_WORLD);
    else
        CHECK(!"a collective");
    CHECK(code != MPI_SUCCESS);
    char text[MPI_MAX_ERROR_STRING];
    int len;
    OK(MPI_Error_string(code, text, &len));
    printf("refused: %s\n", text);
    fflush(stdout);
    return MPI_Abort(MPI_COMM_WORLD, 42);
}
