/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What MPI_Send costs in memory: rank 0 sends ten integers to each of the others, and shows what the kernel says of its memory before and
 * after. On Intel MPI over InfiniBand the sends of such a program took 270 MB. Nearly all of it was
 * locked, and it was never given back.
 *
 *   in kB, more than before      onecopy, 8 ranks    there
 *   VmRSS  resident                           284    270544
 *   VmLck  locked                               0    257812
 *   VmData private                              0    270264
 *   VmPTE  page tables                         60       528
 *   VmSize address space                234918768    270244
 *
 * The address space is what each peer's segment may grow to (ONECOPY_HEAP_SIZE): 32 GiB of holes
 * that nothing is behind. A limit on it (ulimit -v) needs that knob to be lower.
 *
 *   onecopy-mpicc examples/send_memory.c -o send_memory && onecopy run -n 8 ./send_memory
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 6 };

static const char *const names[FIELDS] = {"VmSize", "VmLck", "VmHWM", "VmRSS", "VmData", "VmPTE"};

/* In kB, from /proc/self/status. */
static void look(long values[FIELDS]) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    memset(values, 0, FIELDS * sizeof *values);
    if (!status) return;
    while (fgets(line, sizeof line, status))
        for (int i = 0; i < FIELDS; i++) {
            size_t len = strlen(names[i]);
            if (strncmp(line, names[i], len) == 0 && line[len] == ':') values[i] = atol(line + len + 1);
        }
    fclose(status);
}

int main(int argc, char **argv) {
    int rank, size, numbers[10] = {0};
    long before[FIELDS], after[FIELDS];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) {
        for (int i = 0; i < 10; i++) numbers[i] = i;
        look(before);
        for (int to = 1; to < size; to++) MPI_Send(numbers, 10, MPI_INT, to, 0, MPI_COMM_WORLD);
        look(after);
        printf("%d ranks\n%-8s %12s %12s %12s\n", size, "", "before [kB]", "after [kB]", "more [kB]");
        for (int i = 0; i < FIELDS; i++)
            printf("%-8s %12ld %12ld %12ld\n", names[i], before[i], after[i], after[i] - before[i]);
    } else {
        MPI_Recv(numbers, 10, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < 10; i++)
            if (numbers[i] != i) MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
