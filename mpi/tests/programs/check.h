/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the test programs share: a check that says where it failed, and ends the job. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            MPI_Abort(MPI_COMM_WORLD, 99);                                                         \
        }                                                                                          \
    } while (0)

#define OK(call) CHECK((call) == MPI_SUCCESS)

/* The class of an error code. */
static inline int class_of(int code) {
    int class = -1;
    OK(MPI_Error_class(code, &class));
    return class;
}

/* The handler of the object concerned returns. */
#define RAISES(class, call) CHECK(class_of(call) == (class))

#endif
