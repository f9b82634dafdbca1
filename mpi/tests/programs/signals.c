// SPDX-License-Identifier: MIT OR Apache-2.0
/* Ranks that are hit by a signal a thousand times a second while they talk, and while they sleep in a wait. */
#define _GNU_SOURCE
#include "check.h"
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define MOST (4 << 20)
#define WINDOW 16

static volatile sig_atomic_t hits;
static unsigned char out[MOST], in[MOST];
static int rank, other;

static void on_signal(int number)
{
    (void)number;
    hits++;
}

static unsigned char expected(int from, int round, int at)
{
    return (unsigned char)(at * 7 + at / 251 + from * 31 + round);
}

static void fill(unsigned char *bytes, int len, int from, int round)
{
    for (int at = 0; at < len; at++)
        bytes[at] = expected(from, round, at);
}

static void check(const unsigned char *bytes, int len, int from, int round)
{
    for (int at = 0; at < len; at++)
        CHECK(bytes[at] == expected(from, round, at));
}

/* Both ways at once. */
static void exchange(int len, int round)
{
    fill(out, len, rank, round);
    memset(in, 0, (size_t)len);
    OK(MPI_Sendrecv(out, len, MPI_BYTE, other, 1, in, len, MPI_BYTE, other, 1, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE));
    check(in, len, other, round);
}

/* Many messages under way at a time, one way. */
static void window(int len, int round)
{
    MPI_Request requests[WINDOW];
    for (int i = 0; i < WINDOW; i++) {
        if (rank == round % 2) {
            fill(out + i * len, len, rank, round + i);
            OK(MPI_Isend(out + i * len, len, MPI_BYTE, other, i, MPI_COMM_WORLD, &requests[i]));
        } else {
            OK(MPI_Irecv(in + i * len, len, MPI_BYTE, other, i, MPI_COMM_WORLD, &requests[i]));
        }
    }
    OK(MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < WINDOW && rank != round % 2; i++)
        check(in + i * len, len, other, round + i);
}

/* One waits until it sleeps. */
static void asleep(int round)
{
    struct timespec pause = {0, 20 * 1000 * 1000};
    if (rank == round % 2) {
        /* The signal ends it early. */
        while (nanosleep(&pause, &pause) != 0)
            ;
    }
    exchange(8, round);
}

int main(int argc, char **argv)
{
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    other = 1 - rank;
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    struct itimerspec rate = {{0, 1000 * 1000}, {0, 1000 * 1000}};
    CHECK(timer_settime(timer, 0, &rate, NULL) == 0);
    int least = 0;
    for (int round = 0; round < 12 || least < 500; round++) {
        for (int len = 1; len <= MOST; len *= 16)
            exchange(len, round);
        exchange(MOST, round);
        window(3000, round);
        window(100000, round);
        asleep(round);
        /* Both do as many rounds. */
        int own = hits;
        OK(MPI_Allreduce(&own, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    }
    OK(MPI_Finalize());
    return 0;
}
