/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The job is aborted, from wherever the standard lets a program do that: `ends WHERE CODE THREADS`. It never returns.
   With `communicates` behind it what would abort sends a message instead. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <pthread.h>
#include <unistd.h>

static int code, rank, armed, communicates;

static void end(void) {
    if (communicates) {
        /* Which the standard does not allow a reduction's function. */
        MPI_Send(&code, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        printf("went on\n");
        fflush(stdout);
        _exit(0);
    }
    printf("aborts\n");
    /* The launcher may end this process before it comes to its exit. */
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, code);
    printf("went on\n");
    fflush(stdout);
    _exit(0);
}

static void combine(void *in, void *inout, int *len, MPI_Datatype *type) {
    (void)in, (void)inout, (void)type;
    int size, extent_is_known;
    MPI_Aint lb, extent;
    /* What needs no message may be asked. */
    CHECK(*len > 0 && !MPI_Comm_size(MPI_COMM_WORLD, &size) && !MPI_Initialized(&extent_is_known));
    CHECK(!MPI_Type_get_extent(*type, &lb, &extent) && extent == (MPI_Aint)sizeof(int));
    end();
}

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *flag = 0;
    if (armed) end();
    return MPI_SUCCESS;
}

static int delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    if (armed) end();
    return MPI_SUCCESS;
}

static void handler(MPI_Comm *comm, int *failure, ...) {
    (void)comm, (void)failure;
    end();
}

static void *waits(void *unused) {
    int value;
    MPI_Recv(&value, 1, MPI_INT, rank, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return unused;
}

static void at_exit(void) {
    int flag;
    MPI_Finalized(&flag);
    if (!flag) MPI_Finalize();
    /* Once more, from within the exit. */
    MPI_Abort(MPI_COMM_WORLD, code);
}

static int given[4096], got[4096];

/* One that ends as soon as its own part is done leaves the others in the middle. */
static void reduce(const char *where, MPI_Op op, MPI_Comm comm) {
    MPI_Request request = MPI_REQUEST_NULL;
    int len = 4096, flag = 0;
    if (!strcmp(where, "allreduce")) MPI_Allreduce(given, got, 1, MPI_INT, op, comm);
    if (!strcmp(where, "allreduce_long")) MPI_Allreduce(given, got, len, MPI_INT, op, comm);
    if (!strcmp(where, "reduce")) MPI_Reduce(given, got, len, MPI_INT, op, 0, comm);
    if (!strcmp(where, "scan")) MPI_Scan(given, got, len, MPI_INT, op, comm);
    if (!strcmp(where, "exscan")) MPI_Exscan(given, got, len, MPI_INT, op, comm);
    if (!strcmp(where, "reduce_scatter")) MPI_Reduce_scatter_block(given, got, 1, MPI_INT, op, comm);
    if (!strcmp(where, "ireduce")) {
        MPI_Iallreduce(given, got, len, MPI_INT, op, comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (!strcmp(where, "tested")) {
        MPI_Iallreduce(given, got, 1, MPI_INT, op, comm, &request);
        while (!flag) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    }
    if (!strcmp(where, "reduce_local")) MPI_Reduce_local(given, got, 3, MPI_INT, op);
}

int main(int argc, char **argv) {
    int level, key, threads, value = 0;
    const char *where = argv[1];
    MPI_Op op;
    MPI_Comm comm = MPI_COMM_WORLD, dup, copied;
    MPI_Errhandler own;
    pthread_t thread;
    CHECK(argc >= 4);
    code = atoi(argv[2]);
    communicates = argc > 4;
    threads = !strcmp(argv[3], "multiple")     ? MPI_THREAD_MULTIPLE
              : !strcmp(argv[3], "serialized") ? MPI_THREAD_SERIALIZED
                                               : MPI_THREAD_SINGLE;
    OK(MPI_Init_thread(&argc, &argv, threads, &level));
    CHECK(level == threads);
    MPI_Comm_rank(comm, &rank);
    if (threads == MPI_THREAD_MULTIPLE) CHECK(!pthread_create(&thread, NULL, waits, NULL));
    OK(MPI_Op_create(combine, 1, &op));
    OK(MPI_Comm_create_keyval(copy, delete, &key, NULL));
    OK(MPI_Comm_dup(comm, &dup));
    OK(MPI_Comm_set_attr(dup, key, &key));
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, key, &key));
    armed = 1;
    reduce(where, op, dup);
    if (!strcmp(where, "copy")) MPI_Comm_dup(dup, &copied);
    if (!strcmp(where, "delete")) MPI_Comm_free(&dup);
    if (!strcmp(where, "replace")) MPI_Comm_set_attr(dup, key, NULL);
    if (!strcmp(where, "finalize")) MPI_Finalize();
    if (!strcmp(where, "handler")) {
        OK(MPI_Comm_create_errhandler(handler, &own));
        OK(MPI_Comm_set_errhandler(comm, own));
        MPI_Send(&value, 1, MPI_INT, -9, 0, comm);
    }
    if (!strcmp(where, "fatal")) {
        /* A code of the program's own, whose low byte is 0. */
        for (value = 1; value % 256 != 0;) OK(MPI_Add_error_code(MPI_ERR_OTHER, &value));
        MPI_Comm_call_errhandler(comm, value);
    }
    if (!strcmp(where, "exit")) atexit(at_exit);
    if (!strcmp(where, "plain") || !strcmp(where, "exit")) end();
    if (!strcmp(where, "second_thread")) CHECK(!pthread_create(&thread, NULL, waits, NULL));
    /* Those who abort nothing wait for the end. */
    for (;;) MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 78, comm, MPI_STATUS_IGNORE);
}
