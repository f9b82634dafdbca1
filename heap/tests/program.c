// SPDX-License-Identifier: MIT OR Apache-2.0
/* What an ordinary program does with memory. Built and run under the malloc front by heap/tests/programs.rs; each check that fails ends it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Pages that the memfd has, in bytes. */
static size_t resident(void)
{
    char line[512];
    size_t kib = 0;
    int ours = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        size_t n;
        if (strchr(line, '-') && strstr(line, " /memfd:onecopy"))
            ours = 1;
        else if (ours && sscanf(line, "Rss: %zu", &n) == 1) {
            kib += n;
            ours = 0;
        }
    }
    fclose(maps);
    return kib << 10;
}

static void *early;

__attribute__((constructor)) static void construct(void)
{
    early = malloc(4 * MIB);
    CHECK(early);
    memset(early, 5, 4 * MIB);
}

static int all(const unsigned char *p, size_t len, int value)
{
    for (size_t i = 0; i < len; i++)
        if (p[i] != value)
            return 0;
    return 1;
}

static void basics(void)
{
    CHECK(all(early, 4 * MIB, 5));
    free(early);
    char *small = malloc(100);
    CHECK(small && !in_front(small));
    char *large = malloc(MIB);
    CHECK(large && in_front(large));
    CHECK(malloc_usable_size(large) >= MIB);
    CHECK(malloc_usable_size(small) >= 100);
    memset(large, 1, MIB);
    errno = 77;
    free(large);
    free(NULL);
    CHECK(errno == 77);
    /* What comes back, comes back zeroed where that is promised. */
    for (int i = 0; i < 20; i++) {
        unsigned char *zero = calloc(MIB, 1);
        CHECK(zero && in_front(zero) && all(zero, MIB, 0));
        memset(zero, 3, MIB);
        free(zero);
    }
    CHECK(calloc(SIZE_MAX, 2) == NULL);
    volatile size_t huge = SIZE_MAX - 5;
    CHECK(malloc(huge) == NULL);
    CHECK(realloc(small, huge) == NULL);
    free(small);
}

static void reallocation(void)
{
    unsigned char *p = malloc(1000);
    memset(p, 9, 1000);
    p = realloc(p, 2 * MIB);
    CHECK(in_front(p) && all(p, 1000, 9));
    memset(p, 8, 2 * MIB);
    p = realloc(p, 8 * MIB);
    CHECK(in_front(p) && all(p, 2 * MIB, 8));
    unsigned char *same = realloc(p, 3 * MIB);
    CHECK(same == p && malloc_usable_size(same) == 3 * MIB);
    /* The part that was cut off is given to others. */
    unsigned char *other = malloc(2 * MIB);
    memset(other, 7, 2 * MIB);
    CHECK(all(p, 2 * MIB, 8));
    p = realloc(p, 50);
    CHECK(!in_front(p) && all(p, 50, 8));
    p = realloc(p, MIB);
    CHECK(in_front(p) && all(p, 50, 8));
    CHECK(realloc(p, 0) == NULL);
    other = reallocarray(other, 3, MIB);
    CHECK(in_front(other) && all(other, 2 * MIB, 7));
    free(other);
    p = realloc(NULL, MIB);
    CHECK(in_front(p));
    free(p);
}

static void alignment(void)
{
    void *p = NULL;
    for (size_t align = sizeof(void *); align <= 8 * MIB; align *= 2) {
        CHECK(posix_memalign(&p, align, MIB) == 0);
        CHECK((align > 2 * MIB || in_front(p)) && (uintptr_t)p % align == 0);
        free(p);
        p = aligned_alloc(align, 8 * MIB);
        CHECK((align > 2 * MIB || in_front(p)) && (uintptr_t)p % align == 0);
        free(p);
        p = memalign(align, 100);
        CHECK(!in_front(p) && (uintptr_t)p % align == 0);
        free(p);
    }
    CHECK(posix_memalign(&p, 3, MIB) == EINVAL);
    CHECK(posix_memalign(&p, 24, MIB) == EINVAL);
    p = valloc(MIB);
    CHECK(in_front(p) && (uintptr_t)p % 4096 == 0);
    free(p);
    p = pvalloc(MIB + 1);
    CHECK(in_front(p) && malloc_usable_size(p) >= MIB + 4096);
    free(p);
}

static void given_back(void)
{
    size_t before = resident();
    char *p = malloc(256 * MIB);
    CHECK(resident() < before + MIB);
    memset(p, 1, 256 * MIB);
    CHECK(resident() >= before + 256 * MIB);
    free(p);
    CHECK(resident() <= before + MIB);
    /* Of small ones a bounded amount is kept. */
    char *many[512];
    for (int i = 0; i < 512; i++) {
        many[i] = malloc(256 << 10);
        memset(many[i], 1, 256 << 10);
    }
    for (int i = 0; i < 512; i++)
        free(many[i]);
    free(early);
    CHECK(resident() <= 33 * MIB);
}

static void child_is_fine(pid_t child)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void forks(void)
{
    unsigned char *p = malloc(8 * MIB), *hole = malloc(64 * MIB);
    CHECK(in_front(p) && in_front(hole));
    memset(p, 1, 8 * MIB);
    hole[32 * MIB] = 6;
    int to_child[2], to_parent[2];
    char byte = 0;
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(!in_front(p));
        /* What the parent writes after the fork is not seen. */
        CHECK(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1);
        CHECK(all(p, 8 * MIB, 1) && hole[32 * MIB] == 6 && hole[0] == 0);
        memset(p, 2, 8 * MIB);
        memset(hole, 2, 64 * MIB);
        /* And the child goes on as a program does. */
        unsigned char *more = malloc(16 * MIB);
        memset(more, 4, 16 * MIB);
        free(p);
        unsigned char *zero = calloc(8, MIB);
        CHECK(all(zero, 8 * MIB, 0));
        memset(zero, 4, 8 * MIB);
        free(hole);
        hole = realloc(more, 32 * MIB);
        CHECK(all(hole, 16 * MIB, 4));
        pid_t grandchild = fork();
        if (grandchild == 0) {
            memset(hole, 5, 32 * MIB);
            free(hole);
            _exit(0);
        }
        child_is_fine(grandchild);
        CHECK(all(hole, 16 * MIB, 4));
        _exit(0);
    }
    CHECK(child > 0 && read(to_parent[0], &byte, 1) == 1);
    memset(p, 3, 8 * MIB);
    CHECK(write(to_child[1], &byte, 1) == 1);
    child_is_fine(child);
    /* What the child wrote and freed is not seen. */
    CHECK(all(p, 8 * MIB, 3) && hole[32 * MIB] == 6 && hole[0] == 0);
    free(p);
    free(hole);
}

static void *churn(void *seed)
{
    unsigned state = (unsigned)(uintptr_t)seed;
    struct { unsigned char *p; size_t len; int value; } held[16] = {{0}};
    for (int round = 0; round < 2000; round++) {
        int slot = rand_r(&state) % 16;
        size_t len = (size_t)1 << (8 + rand_r(&state) % 12);
        len += rand_r(&state) % len;
        if (held[slot].p) {
            CHECK(held[slot].p[0] == held[slot].value);
            CHECK(held[slot].p[held[slot].len - 1] == held[slot].value);
        }
        if (rand_r(&state) % 3 == 0) {
            size_t had = held[slot].len;
            held[slot].p = realloc(held[slot].p, len);
            CHECK(held[slot].p);
            if (had)
                CHECK(held[slot].p[(had < len ? had : len) - 1] == held[slot].value);
        } else {
            free(held[slot].p);
            held[slot].p = malloc(len);
        }
        held[slot].len = len;
        held[slot].value = rand_r(&state) % 256;
        memset(held[slot].p, held[slot].value, len);
        if (round % 1000 == 500) {
            pid_t child = fork();
            if (child == 0) {
                for (int i = 0; i < 16; i++)
                    if (held[i].p)
                        CHECK(all(held[i].p, held[i].len, held[i].value));
                _exit(0);
            }
            child_is_fine(child);
        }
    }
    for (int i = 0; i < 16; i++)
        free(held[i].p);
    return NULL;
}

static void threads(void)
{
    pthread_t thread[8];
    for (uintptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&thread[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
}

static void programs(char *own)
{
    char *p = malloc(MIB);
    memset(p, 1, MIB);
    /* The front goes along, and begins anew. */
    char command[4096];
    snprintf(command, sizeof command, "%s basics", own);
    CHECK(system(command) == 0);
    pid_t child = fork();
    if (child == 0) {
        execl(own, own, "reallocation", NULL);
        _exit(9);
    }
    child_is_fine(child);
    CHECK(all((unsigned char *)p, MIB, 1));
    free(p);
}

static void libraries(void)
{
    /* What the C library allocates by itself, and we free. */
    char *line = NULL;
    size_t len = 0;
    char *text = NULL;
    FILE *file = open_memstream(&text, &len);
    CHECK(file);
    for (int i = 0; i < 300000; i++)
        fputs("text", file);
    fclose(file);
    CHECK(len == 1200000 && in_front(text));
    file = fmemopen(text, len, "r");
    size_t room = 0;
    CHECK(getline(&line, &room, file) == (ssize_t)len && in_front(line));
    fclose(file);
    char *copy = strdup(line);
    CHECK(in_front(copy) && !strcmp(copy, line));
    free(copy);
    free(line);
    free(text);
    CHECK(dlopen("libnothing.so", RTLD_NOW) == NULL && dlerror());
}

static void double_free(void)
{
    void *volatile p = malloc(MIB);
    free(p);
    free(p);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
#define RUN(name)                                                              \
    if (!strcmp(what, #name))                                                  \
        return name(), 0
    RUN(basics);
    RUN(reallocation);
    RUN(alignment);
    RUN(given_back);
    RUN(forks);
    RUN(threads);
    RUN(libraries);
    RUN(double_free);
    if (!strcmp(what, "programs"))
        return programs(argv[0]), 0;
    return 2;
}
