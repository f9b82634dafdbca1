/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Persistent collectives: initialised in one order by all, started by each in its own. */
#include "check.h"

enum { KINDS = 6, MANY = 1200, N = 300 };

static int rank, size;

/* The numbers of the requests, in an order of this rank's own. */
static void order(int round, int *of, int n) {
    for (int i = 0; i < n; i++) of[i] = i;
    unsigned seed = (unsigned)(round * 31 + rank * 7 + 1);
    for (int i = n - 1; i > 0; i--) {
        seed = seed * 1103515245u + 12345u;
        int j = (int)(seed / 65536 % (unsigned)(i + 1)), other = of[i];
        of[i] = of[j];
        of[j] = other;
    }
}

static void in_any_order(MPI_Comm comm) {
    MPI_Request requests[KINDS];
    static int sum[N], most[N], all[16 * N], word[N], mine[N], from[16], to[16];
    OK(MPI_Allreduce_init(mine, sum, N, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &requests[0]));
    OK(MPI_Allreduce_init(mine, most, N, MPI_INT, MPI_MAX, comm, MPI_INFO_NULL, &requests[1]));
    OK(MPI_Allgather_init(mine, N, MPI_INT, all, N, MPI_INT, comm, MPI_INFO_NULL, &requests[2]));
    OK(MPI_Bcast_init(word, N, MPI_INT, size - 1, comm, MPI_INFO_NULL, &requests[3]));
    OK(MPI_Alltoall_init(to, 1, MPI_INT, from, 1, MPI_INT, comm, MPI_INFO_NULL, &requests[4]));
    OK(MPI_Barrier_init(comm, MPI_INFO_NULL, &requests[5]));
    for (int round = 0; round < 50; round++) {
        int turn[KINDS], extra = rank, total;
        order(round, turn, KINDS);
        for (int i = 0; i < N; i++) {
            mine[i] = rank * round + i;
            word[i] = rank == size - 1 ? round ^ i : -1;
        }
        for (int i = 0; i < size; i++) to[i] = rank * 100 + i + round;
        for (int i = 0; i < KINDS / 2; i++) OK(MPI_Start(&requests[turn[i]]));
        /* One that is not persistent, between the starts of the others. */
        OK(MPI_Allreduce(&extra, &total, 1, MPI_INT, MPI_SUM, comm));
        CHECK(total == size * (size - 1) / 2);
        for (int i = KINDS / 2; i < KINDS; i++) OK(MPI_Start(&requests[turn[i]]));
        OK(MPI_Waitall(KINDS, requests, MPI_STATUSES_IGNORE));
        for (int i = 0; i < N; i++) {
            CHECK(sum[i] == round * size * (size - 1) / 2 + i * size);
            CHECK(most[i] == round * (size - 1) + i);
            CHECK(word[i] == (round ^ i));
            for (int r = 0; r < size; r++) CHECK(all[r * N + i] == r * round + i);
        }
        for (int r = 0; r < size; r++) CHECK(from[r] == r * 100 + rank + round);
    }
    for (int i = 0; i < KINDS; i++) OK(MPI_Request_free(&requests[i]));
}

static void neighbours_in_any_order(void) {
    enum { CALLS = 5 };
    MPI_Comm ring;
    int periodic = 1, left, right;
    OK(MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &ring));
    OK(MPI_Cart_shift(ring, 0, 1, &left, &right));
    MPI_Request requests[CALLS];
    int out[CALLS], in[CALLS][2];
    for (int i = 0; i < CALLS; i++)
        OK(MPI_Neighbor_allgather_init(&out[i], 1, MPI_INT, in[i], 1, MPI_INT, ring, MPI_INFO_NULL, &requests[i]));
    for (int round = 0; round < 50; round++) {
        int turn[CALLS], extra[2];
        order(round, turn, CALLS);
        for (int i = 0; i < CALLS; i++) out[i] = rank * 1000 + i * 100 + round;
        for (int i = 0; i < CALLS; i++) {
            OK(MPI_Start(&requests[turn[i]]));
            if (i == 2) OK(MPI_Neighbor_allgather(&rank, 1, MPI_INT, extra, 1, MPI_INT, ring));
        }
        OK(MPI_Waitall(CALLS, requests, MPI_STATUSES_IGNORE));
        CHECK(extra[0] == left && extra[1] == right);
        for (int i = 0; i < CALLS; i++)
            CHECK(in[i][0] == left * 1000 + i * 100 + round && in[i][1] == right * 1000 + i * 100 + round);
    }
    for (int i = 0; i < CALLS; i++) OK(MPI_Request_free(&requests[i]));
    OK(MPI_Comm_free(&ring));
}

/* More than there is room for have to be started in one order; they leave room for communicators. */
static void very_many(void) {
    static MPI_Request requests[MANY];
    static int sum[MANY];
    MPI_Comm more[100];
    for (int i = 0; i < MANY; i++)
        OK(MPI_Allreduce_init(&rank, &sum[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[i]));
    for (int i = 0; i < 100; i++) OK(MPI_Comm_dup(MPI_COMM_WORLD, &more[i]));
    for (int round = 0; round < 3; round++) {
        OK(MPI_Startall(MANY, requests));
        OK(MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE));
        for (int i = 0; i < MANY; i++) {
            CHECK(sum[i] == size * (size - 1) / 2);
            sum[i] = 0;
        }
    }
    for (int i = 0; i < MANY; i++) OK(MPI_Request_free(&requests[i]));
    for (int i = 0; i < 100; i++) OK(MPI_Comm_free(&more[i]));
    /* What is freed is used again. */
    for (int i = 0; i < 3000; i++) {
        OK(MPI_Allreduce_init(&rank, sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, requests));
        OK(MPI_Start(requests));
        OK(MPI_Wait(requests, MPI_STATUS_IGNORE));
        CHECK(sum[0] == size * (size - 1) / 2);
        OK(MPI_Request_free(requests));
    }
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    in_any_order(MPI_COMM_WORLD);
    MPI_Comm dup;
    MPI_Request request;
    OK(MPI_Comm_idup(MPI_COMM_WORLD, &dup, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    in_any_order(dup);
    OK(MPI_Comm_free(&dup));
    neighbours_in_any_order();
    very_many();
    OK(MPI_Finalize());
    return 0;
}
