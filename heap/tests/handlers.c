// SPDX-License-Identifier: MIT OR Apache-2.0
/* A library that the test program needs: its constructor runs before the front's. Its handlers of forks allocate, free and write in all
   sizes, as those of other libraries may. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* Written by each handler: the child must see what was written before the fork, and the parent nothing of the child's. */
unsigned char *early_state;
static void *of_before;

static void use(size_t len)
{
    unsigned char *p = malloc(len);
    if (!p)
        _exit(21);
    memset(p, 0xee, len);
    p = realloc(p, 2 * len);
    free(p);
    unsigned char *zero = calloc(len, 1);
    for (size_t i = 0; i < len; i++)
        if (zero[i])
            _exit(22);
    free(zero);
}

static void prepare(void)
{
    use(100);
    use(MIB);
    of_before = malloc(3 * MIB);
    memset(of_before, 0x33, 3 * MIB);
    if (early_state)
        memset(early_state, 1, 4 * MIB);
}

static void after(int value)
{
    use(100);
    use(MIB);
    if (((unsigned char *)of_before)[3 * MIB - 1] != 0x33)
        _exit(23);
    free(of_before);
    if (early_state) {
        if (early_state[0] != 1 || early_state[4 * MIB - 1] != 1)
            _exit(24);
        memset(early_state, value, 4 * MIB);
    }
}

static void parent(void)
{
    after(2);
}

static void child(void)
{
    after(3);
}

__attribute__((constructor)) static void construct(void)
{
    if (getenv("TEST_HANDLERS"))
        pthread_atfork(prepare, parent, child);
}
