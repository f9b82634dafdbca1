// SPDX-License-Identifier: MIT OR Apache-2.0
/* Forks, cancellation and limits under the malloc front. Built and run by heap/tests/forks.rs; each check that fails ends it. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);         \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

extern unsigned char *early_state;

/* Whether memory is the front's: it lies in a mapping of the memfd. */
static int in_front(const void *p)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        uintptr_t begin, end;
        CHECK(sscanf(line, "%lx-%lx", &begin, &end) == 2);
        if ((uintptr_t)p >= begin && (uintptr_t)p < end)
            found = strstr(line, "memfd:onecopy") != NULL;
    }
    fclose(maps);
    return found;
}

static int all(const unsigned char *p, size_t len, int value)
{
    for (size_t i = 0; i < len; i++)
        if (p[i] != value)
            return 0;
    return 1;
}

static void child_is_fine(pid_t child)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) {
        fprintf(stderr, "child ended with status %x\n", status);
        _exit(1);
    }
}

static void late_prepare(void)
{
    unsigned char *p = malloc(5 * MIB);
    memset(p, 7, 5 * MIB);
    free(p);
}

/* Handlers of a library that was there before the front, and of the program, which comes behind it. */
static void handlers(void)
{
    CHECK(pthread_atfork(late_prepare, late_prepare, late_prepare) == 0);
    early_state = malloc(4 * MIB);
    CHECK(in_front(early_state));
    memset(early_state, 9, 4 * MIB);
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(all(early_state, 4 * MIB, 3));
            pid_t grandchild = fork();
            if (grandchild == 0)
                _exit(all(early_state, 4 * MIB, 3) ? 0 : 31);
            child_is_fine(grandchild);
            CHECK(all(early_state, 4 * MIB, 2));
            _exit(0);
        }
        child_is_fine(child);
        CHECK(all(early_state, 4 * MIB, 2));
    }
}

static volatile int stop;

static void *churn(void *seed)
{
    while (!stop) {
        unsigned char *p = malloc(MIB);
        p[5] = (unsigned char)(uintptr_t)seed;
        CHECK(p[5] == (unsigned char)(uintptr_t)seed);
        free(p);
    }
    return NULL;
}

static void handlers_threads(void)
{
    pthread_t thread[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, churn, (void *)(i + 1)) == 0);
    handlers();
    stop = 1;
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
}

/* What the front can be refused before a fork: room in the address space, or private memory. */
static void refused(int what)
{
    size_t len = 8 * MIB;
    unsigned char *p = malloc(len), *freed = malloc(MIB), *behind = malloc(MIB);
    CHECK(in_front(p) && in_front(freed));
    memset(p, 1, len);
    memset(freed, 2, MIB);
    memset(behind, 3, MIB);
    free(freed);
    int to_child[2], to_parent[2];
    char byte = 0;
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    /* Enough for what the program does, not for another region. */
    struct rlimit old, limit;
    CHECK(getrlimit(what, &old) == 0);
    limit = old;
    if (what == RLIMIT_AS) {
        unsigned long pages;
        FILE *statm = fopen("/proc/self/statm", "r");
        CHECK(statm && fscanf(statm, "%lu", &pages) == 1);
        fclose(statm);
        limit.rlim_cur = pages * 4096 + 512 * MIB;
    } else {
        limit.rlim_cur = 512 * MIB;
    }
    CHECK(setrlimit(what, &limit) == 0);
    pid_t child = fork();
    if (child == 0) {
        /* The parent writes to memory that was free at the fork, and to some that was freed since. */
        CHECK(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1);
        free(behind);
        for (int round = 0; round < 16; round++) {
            unsigned char *zero = calloc(MIB, 1);
            CHECK(zero && all(zero, MIB, 0));
            memset(zero, 5, MIB);
            if (round % 2)
                free(zero);
        }
        unsigned char *more = realloc(p, 16 * MIB);
        memset(more, 6, 16 * MIB);
        free(more);
        _exit(0);
    }
    CHECK(child > 0 && read(to_parent[0], &byte, 1) == 1);
    unsigned char *mine[16];
    for (int i = 0; i < 16; i++) {
        mine[i] = malloc(MIB);
        memset(mine[i], 4, MIB);
    }
    CHECK(write(to_child[1], &byte, 1) == 1);
    child_is_fine(child);
    CHECK(all(p, len, 1) && all(behind, MIB, 3));
    for (int i = 0; i < 16; i++)
        CHECK(all(mine[i], MIB, 4));
}

static pthread_mutex_t pending = PTHREAD_MUTEX_INITIALIZER;
static volatile int reached;

/* Cancelled before it frees: neither malloc nor free is a cancellation point. */
static void *cancelled(void *large)
{
    pthread_mutex_lock(&pending);
    pthread_mutex_unlock(&pending);
    free(large);
    void *p = malloc(64 * MIB);
    memset(p, 1, MIB);
    p = realloc(p, 8 * MIB);
    free(p);
    reached = 1;
    pthread_testcancel();
    reached = 2;
    return NULL;
}

static void cancel(void)
{
    /* The very first allocation makes the region: by then nobody may have been cancelled either. */
    for (int round = 0; round < 20; round++) {
        void *large = round ? malloc(100 * MIB) : NULL;
        if (large)
            memset(large, 1, MIB);
        pthread_t thread;
        void *result;
        reached = 0;
        pthread_mutex_lock(&pending);
        CHECK(pthread_create(&thread, NULL, cancelled, large) == 0);
        CHECK(pthread_cancel(thread) == 0);
        pthread_mutex_unlock(&pending);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(reached == 1 && result == PTHREAD_CANCELED);
        void *next = malloc(MIB);
        CHECK(in_front(next));
        free(next);
    }
}

/* The limit of the size of files: what does not fit goes elsewhere, and nobody is killed. */
static void file_limit(void)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY);
    unsigned char *p = malloc(8 * MIB);
    CHECK(p);
    memset(p, 1, 8 * MIB);
    p = realloc(p, 16 * MIB);
    CHECK(p && all(p, 8 * MIB, 1));
    pid_t child = fork();
    if (child == 0)
        _exit(all(p, 8 * MIB, 1) ? 0 : 1);
    child_is_fine(child);
    free(p);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
#define RUN(name)                                                              \
    if (!strcmp(what, #name))                                                  \
        return name(), 0
    RUN(handlers);
    RUN(handlers_threads);
    RUN(cancel);
    RUN(file_limit);
    if (!strcmp(what, "refused_address_space"))
        return refused(RLIMIT_AS), 0;
    if (!strcmp(what, "refused_data"))
        return refused(RLIMIT_DATA), 0;
    return 2;
}
