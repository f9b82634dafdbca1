// SPDX-License-Identifier: MIT OR Apache-2.0
/* Ranks that fork, in every way that programs do, and ranks that finalize when they exit. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int rank, size;
static unsigned char *shared;
static MPI_Comm copy;

#define BYTES (1 << 20)

/* Traffic of all ranks: small, large, collective. */
static void traffic(int round)
{
    static unsigned char out[BYTES], in[BYTES];
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int len = 8; len <= BYTES; len *= 16) {
        memset(out, rank + round + len, (size_t)len);
        MPI_Sendrecv(out, len, MPI_BYTE, next, 1, in, len, MPI_BYTE, before, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(in[0] == (unsigned char)(before + round + len) && in[len - 1] == in[0]);
    }
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, copy);
    CHECK(sum == size * (size - 1) / 2);
}

static int status_of(pid_t child)
{
    int status;
    CHECK(child > 0);
    while (waitpid(child, &status, 0) < 0)
        CHECK(errno == EINTR);
    return status;
}

static void ended_with(pid_t child, int code)
{
    int status = status_of(child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        fprintf(stderr, "a child ended with status %#x instead of code %d\n", status, code);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static void finalize_at_exit(void)
{
    int over;
    MPI_Finalized(&over);
    /* A child is told that there is nothing to do, and may do it all the same. */
    CHECK(over);
    CHECK(MPI_Finalize() == MPI_SUCCESS);
}

/* One call that a child must not make; the default error handler ends it. */
static void forbidden(int what)
{
    char byte = 0;
    MPI_Request request;
    void *memory;
    /* What the call says is for a reader, not for this test's output. */
    switch (what) {
    case 0: MPI_Send(&byte, 1, MPI_BYTE, (rank + 1) % size, 77, MPI_COMM_WORLD); break;
    case 1: MPI_Isend(&byte, 1, MPI_BYTE, (rank + 1) % size, 77, copy, &request); break;
    case 2: MPI_Recv(&byte, 1, MPI_BYTE, MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE); break;
    case 3: MPI_Barrier(MPI_COMM_WORLD); break;
    case 4: MPI_Barrier(copy); break;
    case 5: MPI_Comm_dup(MPI_COMM_WORLD, &copy); break;
    case 6: MPI_Alloc_mem(100, MPI_INFO_NULL, &memory); break;
    case 7: MPI_Init(NULL, NULL); break;
    case 8: MPI_Send(&byte, 1, MPI_BYTE, rank, 77, MPI_COMM_SELF); break;
    case 9: MPI_Iprobe(MPI_ANY_SOURCE, 77, copy, &what, MPI_STATUS_IGNORE); break;
    default: _exit(0);
    }
    /* It came back: that it failed cannot be seen, which is wrong. */
    _exit(0);
}
#define FORBIDDEN 10

static void forks(void)
{
    for (int what = 0; what < FORBIDDEN; what++) {
        pid_t child = fork();
        if (child == 0) {
            freopen("/dev/null", "w", stderr);
            forbidden(what);
        }
        int status = status_of(child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) == 0)
            fprintf(stderr, "call %d in a child: status %#x\n", what, status);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 0);
        traffic(what);
    }
    /* One that exits as programs do, with its parent's handlers. */
    pid_t child = fork();
    if (child == 0) {
        int flag;
        MPI_Initialized(&flag);
        CHECK(flag);
        /* Memory from the library is there to be read. */
        CHECK(shared[0] == 17 && shared[BYTES - 1] == 17);
        MPI_Free_mem(shared);
        atexit(finalize_at_exit);
        /* It forks again. */
        pid_t grandchild = fork();
        if (grandchild == 0)
            exit(0);
        ended_with(grandchild, 0);
        exit(0);
    }
    ended_with(child, 0);
    CHECK(shared[0] == 17 && shared[BYTES - 1] == 17);
    traffic(20);
    /* An abort in a child ends the child. */
    child = fork();
    if (child == 0)
        MPI_Abort(MPI_COMM_WORLD, 9);
    ended_with(child, 9);
    traffic(21);
    /* Programs, started in every way. */
    child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    ended_with(child, 0);
    char *arguments[] = {"true", NULL};
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
    ended_with(child, 0);
    CHECK(system("exit 3") == 3 << 8);
    traffic(22);
}

static void *in_a_thread(void *unused)
{
    (void)unused;
    pid_t child = fork();
    if (child == 0) {
        MPI_Finalize();
        exit(0);
    }
    ended_with(child, 0);
    return NULL;
}

/* A child that outlives the job holds what it inherited: nobody waits for it. */
static void long_living(int as_daemon)
{
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        if (as_daemon)
            CHECK(daemon(1, 1) == 0);
        CHECK(write(ready[1], &byte, 1) == 1);
        sleep(3600);
        exit(0);
    }
    if (as_daemon)
        ended_with(child, 0);
    CHECK(read(ready[0], &byte, 1) == 1);
}

static void all_at_exit(void)
{
    int flag, level;
    MPI_Request request[2];
    char out = 1, in = 0;
    traffic(30);
    MPI_Irecv(&in, 1, MPI_CHAR, (rank + size - 1) % size, 3, copy, &request[0]);
    MPI_Isend(&out, 1, MPI_CHAR, (rank + 1) % size, 3, copy, &request[1]);
    MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
    CHECK(in == 1);
    MPI_Is_thread_main(&flag);
    CHECK(flag);
    MPI_Query_thread(&level);
    /* An error is handed out as ever. */
    char text[MPI_MAX_ERROR_STRING];
    int len, code = MPI_Send(&out, 1, MPI_CHAR, size + 5, 3, copy);
    CHECK(code != MPI_SUCCESS && MPI_Error_string(code, text, &len) == MPI_SUCCESS && len > 0);
    CHECK(MPI_Finalize() == MPI_SUCCESS);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "forks";
    int level = !strcmp(what, "thread") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, level, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Alloc_mem(BYTES, MPI_INFO_NULL, &shared);
    memset(shared, 17, BYTES);
    traffic(0);
    if (!strcmp(what, "exit")) {
        MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
        atexit(all_at_exit);
        /* What threads keep for themselves was in use before. */
        CHECK(MPI_Send(&rank, 1, MPI_INT, size + 5, 3, copy) != MPI_SUCCESS);
        return 0;
    }
    if (!strcmp(what, "forks")) {
        forks();
    } else if (!strcmp(what, "thread")) {
        pthread_t thread[4];
        for (int i = 0; i < 4; i++)
            CHECK(pthread_create(&thread[i], NULL, in_a_thread, NULL) == 0);
        for (int round = 0; round < 50; round++)
            traffic(round);
        for (int i = 0; i < 4; i++)
            CHECK(pthread_join(thread[i], NULL) == 0);
    } else if (!strcmp(what, "lives")) {
        long_living(0);
        long_living(1);
    } else {
        return 2;
    }
    traffic(40);
    MPI_Comm_free(&copy);
    MPI_Finalize();
    return 0;
}
