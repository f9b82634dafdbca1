/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The last rank ends without MPI_Finalize, and says that all is well: `deserts HOW`. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size;
    const char *how = argc > 1 ? argv[1] : "";
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == size - 1) {
        if (!strcmp(how, "exit")) exit(0);
        if (!strcmp(how, "beyond")) exit(256);
        if (!strcmp(how, "at once")) _exit(0);
        return 0;
    }
    /* The others see that it is gone; whatever comes of this is not what ends the job. */
    MPI_Finalize();
    return 0;
}
