/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* More messages than a rank remembers for another one: the rest waits at the sender, and everything else goes on. */
#include "check.h"

enum { MANY = 300000, TAGS = 30000 };

static int rank, size;

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    CHECK(size == 2);
    int peer = 1 - rank;
    MPI_Request *requests = calloc(MANY, sizeof *requests);
    CHECK(requests);
    for (int i = 0; i < MANY; i++)
        OK(MPI_Issend(NULL, 0, MPI_BYTE, peer, i % TAGS, MPI_COMM_WORLD, &requests[i]));
    /* What is eager waits behind them, too. */
    int last = rank, got = -1;
    MPI_Request after;
    OK(MPI_Isend(&last, 1, MPI_INT, peer, TAGS, MPI_COMM_WORLD, &after));

    /* Both are here with all of that unanswered, and nobody receives any of it before these are done. */
    MPI_Comm other, half;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &other));
    OK(MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &half));
    int all[2] = {-1, -1};
    OK(MPI_Allgather(&rank, 1, MPI_INT, all, 1, MPI_INT, other));
    CHECK(all[0] == 0 && all[1] == 1);
    static char big[1 << 20], in[1 << 20];
    memset(big, 'a' + rank, sizeof big);
    OK(MPI_Sendrecv(big, sizeof big, MPI_BYTE, peer, 0, in, sizeof in, MPI_BYTE, peer, 0, other,
                    MPI_STATUS_IGNORE));
    CHECK(in[0] == 'a' + peer && in[sizeof in - 1] == 'a' + peer);

    for (int i = 0; i < MANY; i++) {
        MPI_Status status;
        OK(MPI_Recv(NULL, 0, MPI_BYTE, peer, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
        CHECK(status.MPI_TAG == i % TAGS);
    }
    OK(MPI_Recv(&got, 1, MPI_INT, peer, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(got == peer);
    OK(MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE));
    OK(MPI_Wait(&after, MPI_STATUS_IGNORE));
    free(requests);
    OK(MPI_Comm_free(&other));
    OK(MPI_Comm_free(&half));
    OK(MPI_Finalize());
    return 0;
}
