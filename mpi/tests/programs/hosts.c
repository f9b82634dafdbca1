/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* hosts NODES [NAMES]: every rank exchanges checked payload with every other one, on so many nodes. NAMES: how many names
   the processors have; as many as nodes if not given. */
#include "check.h"

enum { LONGEST = 1 << 20, WINDOW = 24, NUMBERS = 3000 };

static int rank, size;
static unsigned char out[LONGEST], in[LONGEST];
static const int lengths[] = {0, 1, 48, 700, 5000, 70000, LONGEST};

/* The byte at a place of what one rank sends to another. */
static unsigned char byte(int from, int to, int length, int at) {
    return (unsigned char)(at * 31 ^ at >> 8 ^ from * 57 ^ to * 101 ^ length);
}

static void fill(unsigned char *buffer, int to, int length) {
    for (int at = 0; at < length; at++) buffer[at] = byte(rank, to, length, at);
}

static void is_from(const unsigned char *buffer, int from, int length) {
    for (int at = 0; at < length; at++) CHECK(buffer[at] == byte(from, rank, length, at));
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* The ranks are where the launcher was told to start them. */
static void places(int nodes, int names) {
    char name[MPI_MAX_PROCESSOR_NAME] = "", *all = calloc(size, sizeof name);
    int length, here, different = 1;
    CHECK(all);
    OK(MPI_Get_processor_name(name, &length));
    OK(MPI_Allgather(name, sizeof name, MPI_CHAR, all, sizeof name, MPI_CHAR, MPI_COMM_WORLD));
    qsort(all, size, sizeof name, by_name);
    for (int i = 1; i < size; i++) different += strcmp(all + (i - 1) * sizeof name, all + i * sizeof name) != 0;
    CHECK(different == names);
    free(all);
    MPI_Comm node;
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    OK(MPI_Comm_size(node, &here));
    CHECK(here == size / nodes);
    OK(MPI_Comm_free(&node));
    printf("rank %d of %d is on %s with %d\n", rank, size, name, here);
}

/* One message of each length to each rank and from each. */
static void pairs(void) {
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int step = 1; step < size; step++) {
            int to = (rank + step) % size, from = (rank + size - step) % size, length = lengths[i], count;
            MPI_Status status;
            fill(out, to, length);
            OK(MPI_Sendrecv(out, length, MPI_BYTE, to, length, in, LONGEST, MPI_BYTE, from, length, MPI_COMM_WORLD, &status));
            OK(MPI_Get_count(&status, MPI_BYTE, &count));
            CHECK(count == length && status.MPI_SOURCE == from);
            is_from(in, from, length);
        }
    }
}

/* Many messages under way at once, whose order counts. */
static void windows(int to, int from) {
    enum { LENGTH = LONGEST / WINDOW };
    MPI_Request requests[2 * WINDOW];
    for (int i = 0; i < WINDOW; i++) {
        int length = LENGTH - i;
        OK(MPI_Irecv(in + i * LENGTH, length, MPI_BYTE, from, 5, MPI_COMM_WORLD, &requests[i]));
        fill(out + i * LENGTH, to, length);
        OK(MPI_Isend(out + i * LENGTH, length, MPI_BYTE, to, 5, MPI_COMM_WORLD, &requests[WINDOW + i]));
    }
    OK(MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < WINDOW; i++) is_from(in + i * LENGTH, from, LENGTH - i);
}

static void collectives(void) {
    static int sent[NUMBERS], got[NUMBERS];
    for (int root = 0; root < size; root++) {
        for (int i = 0; i < NUMBERS; i++) got[i] = rank == root ? i * 7 + root : -1;
        OK(MPI_Bcast(got, NUMBERS, MPI_INT, root, MPI_COMM_WORLD));
        for (int i = 0; i < NUMBERS; i++) CHECK(got[i] == i * 7 + root);
    }
    for (int i = 0; i < NUMBERS; i++) sent[i] = i * (rank + 1);
    OK(MPI_Allreduce(sent, got, NUMBERS, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    for (int i = 0; i < NUMBERS; i++) CHECK(got[i] == i * size * (size + 1) / 2);
    int part = NUMBERS / size;
    for (int to = 0; to < size; to++)
        for (int i = 0; i < part; i++) sent[to * part + i] = rank * 100000 + to * 10000 + i;
    OK(MPI_Alltoall(sent, part, MPI_INT, got, part, MPI_INT, MPI_COMM_WORLD));
    for (int from = 0; from < size; from++)
        for (int i = 0; i < part; i++) CHECK(got[from * part + i] == from * 100000 + rank * 10000 + i);
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    int nodes = argc > 1 ? atoi(argv[1]) : 1;
    CHECK(nodes > 0 && size % nodes == 0);
    places(nodes, argc > 2 ? atoi(argv[2]) : nodes);
    /* A pair comes to a lane while it talks. */
    for (int round = 0; round < 4; round++) {
        pairs();
        for (int step = 1; step < size; step++) windows((rank + step) % size, (rank + size - step) % size);
        collectives();
    }
    OK(MPI_Finalize());
    printf("rank %d: all that came is right\n", rank);
    return 0;
}
