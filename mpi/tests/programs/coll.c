/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every collective in its three forms, on the world and on parts of it, with dense and scattered datatypes. */
#include "check.h"

static int rank, size;
static MPI_Comm comm;

/* Runs a collective three times: blocking, nonblocking, persistent (twice). */
#define FORMS(prepare, verify, name, ...)                                                          \
    do {                                                                                           \
        MPI_Request request;                                                                       \
        prepare;                                                                                   \
        OK(MPI_##name(__VA_ARGS__, comm));                                                         \
        verify;                                                                                    \
        prepare;                                                                                   \
        OK(MPI_I##name##_LOWER(__VA_ARGS__, comm, &request));                                      \
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));                                                 \
        verify;                                                                                    \
        OK(MPI_##name##_init(__VA_ARGS__, comm, MPI_INFO_NULL, &request));                         \
        for (int turn = 0; turn < 2; turn++) {                                                     \
            prepare;                                                                               \
            OK(MPI_Start(&request));                                                               \
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));                                             \
            verify;                                                                                \
        }                                                                                          \
        OK(MPI_Request_free(&request));                                                            \
    } while (0)

#define MPI_IBcast_LOWER MPI_Ibcast
#define MPI_IGather_LOWER MPI_Igather
#define MPI_IGatherv_LOWER MPI_Igatherv
#define MPI_IScatter_LOWER MPI_Iscatter
#define MPI_IScatterv_LOWER MPI_Iscatterv
#define MPI_IAllgather_LOWER MPI_Iallgather
#define MPI_IAllgatherv_LOWER MPI_Iallgatherv
#define MPI_IAlltoall_LOWER MPI_Ialltoall
#define MPI_IAlltoallv_LOWER MPI_Ialltoallv
#define MPI_IAlltoallw_LOWER MPI_Ialltoallw
#define MPI_IReduce_LOWER MPI_Ireduce
#define MPI_IAllreduce_LOWER MPI_Iallreduce
#define MPI_IReduce_scatter_LOWER MPI_Ireduce_scatter
#define MPI_IReduce_scatter_block_LOWER MPI_Ireduce_scatter_block
#define MPI_IScan_LOWER MPI_Iscan
#define MPI_IExscan_LOWER MPI_Iexscan

enum { MOST = 20000, RANKS = 8 };
static int in[MOST * RANKS], out[MOST * RANKS];

static int value(int of, int i) { return of * 100003 + i * 7 + 1; }

static void clear(void) { memset(in, 0xee, sizeof in); }

static void data(int count) {
    for (int root = 0; root < size; root++) {
        FORMS({ clear(); if (rank == root) for (int i = 0; i < count; i++) in[i] = value(root, i); },
              for (int i = 0; i < count; i++) CHECK(in[i] == value(root, i)), Bcast, in, count, MPI_INT, root);
        FORMS({ clear(); for (int i = 0; i < count; i++) out[i] = value(rank, i); },
              if (rank == root) for (int r = 0; r < size; r++) for (int i = 0; i < count; i++)
                  CHECK(in[r * count + i] == value(r, i)),
              Gather, out, count, MPI_INT, in, count, MPI_INT, root);
        FORMS({ clear(); for (int i = 0; i < count * size; i++) out[i] = value(rank, i); },
              for (int i = 0; i < count; i++) CHECK(in[i] == value(root, rank * count + i)),
              Scatter, out, count, MPI_INT, in, count, MPI_INT, root);
    }
    FORMS({ clear(); for (int i = 0; i < count; i++) out[i] = value(rank, i); },
          for (int r = 0; r < size; r++) for (int i = 0; i < count; i++) CHECK(in[r * count + i] == value(r, i)),
          Allgather, out, count, MPI_INT, in, count, MPI_INT);
    FORMS({ clear(); for (int i = 0; i < count; i++) in[rank * count + i] = value(rank, i); },
          for (int r = 0; r < size; r++) for (int i = 0; i < count; i++) CHECK(in[r * count + i] == value(r, i)),
          Allgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, count, MPI_INT);
    FORMS({ clear(); for (int i = 0; i < count * size; i++) out[i] = value(rank, i); },
          for (int r = 0; r < size; r++) for (int i = 0; i < count; i++)
              CHECK(in[r * count + i] == value(r, rank * count + i)),
          Alltoall, out, count, MPI_INT, in, count, MPI_INT);
    FORMS({ clear(); for (int i = 0; i < count * size; i++) in[i] = value(rank, i); },
          for (int r = 0; r < size; r++) for (int i = 0; i < count; i++)
              CHECK(in[r * count + i] == value(r, rank * count + i)),
          Alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, count, MPI_INT);
}

static void vectors(int count) {
    int counts[RANKS], displs[RANKS], bytes[RANKS], mine[RANKS], places[RANKS], at = 0;
    MPI_Datatype types[RANKS];
    for (int r = 0; r < size; r++) {
        counts[r] = count + r;
        displs[r] = at;
        bytes[r] = at * (int)sizeof(int);
        at += counts[r] + 1;
        mine[r] = count + rank;
        places[r] = r * (count + rank);
        types[r] = MPI_INT;
    }
    FORMS({ clear(); for (int i = 0; i < counts[rank]; i++) out[i] = value(rank, i); },
          if (rank == 0) for (int r = 0; r < size; r++) for (int i = 0; i < counts[r]; i++)
              CHECK(in[displs[r] + i] == value(r, i)),
          Gatherv, out, counts[rank], MPI_INT, in, counts, displs, MPI_INT, 0);
    FORMS({ clear(); for (int i = 0; i < at; i++) out[i] = value(rank, i); },
          for (int i = 0; i < counts[rank]; i++) CHECK(in[i] == value(0, displs[rank] + i)),
          Scatterv, out, counts, displs, MPI_INT, in, counts[rank], MPI_INT, 0);
    FORMS({ clear(); for (int i = 0; i < counts[rank]; i++) out[i] = value(rank, i); },
          for (int r = 0; r < size; r++) for (int i = 0; i < counts[r]; i++) CHECK(in[displs[r] + i] == value(r, i)),
          Allgatherv, out, counts[rank], MPI_INT, in, counts, displs, MPI_INT);
    /* Rank r receives count + r elements from everyone. */
    FORMS({ clear(); for (int i = 0; i < at; i++) out[i] = value(rank, i); },
          for (int r = 0; r < size; r++) for (int i = 0; i < mine[r]; i++)
              CHECK(in[places[r] + i] == value(r, displs[rank] + i)),
          Alltoallv, out, counts, displs, MPI_INT, in, mine, places, MPI_INT);
    int offsets[RANKS];
    for (int r = 0; r < size; r++) offsets[r] = places[r] * (int)sizeof(int);
    FORMS({ clear(); for (int i = 0; i < at; i++) out[i] = value(rank, i); },
          for (int r = 0; r < size; r++) for (int i = 0; i < mine[r]; i++)
              CHECK(in[places[r] + i] == value(r, displs[rank] + i)),
          Alltoallw, out, counts, bytes, types, in, mine, offsets, types);
}

static void multiply(void *a, void *b, int *n, MPI_Datatype *type) {
    /* 2 x 2 matrices: associative, not commutative. */
    unsigned *x = a, *y = b;
    (void)type;
    for (int i = 0; i < *n; i++, x += 4, y += 4) {
        unsigned p = x[0] * y[0] + x[1] * y[2], q = x[0] * y[1] + x[1] * y[3];
        unsigned r = x[2] * y[0] + x[3] * y[2], s = x[2] * y[1] + x[3] * y[3];
        y[0] = p; y[1] = q; y[2] = r; y[3] = s;
    }
}

static void reductions(int count) {
    int total = size * (size - 1) / 2 * 100003;
    FORMS({ clear(); for (int i = 0; i < count; i++) out[i] = value(rank, i); },
          for (int i = 0; i < count; i++) CHECK(in[i] == total + size * (i * 7 + 1)),
          Allreduce, out, in, count, MPI_INT, MPI_SUM);
    FORMS(for (int i = 0; i < count; i++) in[i] = value(rank, i),
          for (int i = 0; i < count; i++) CHECK(in[i] == value(size - 1, i)),
          Allreduce, MPI_IN_PLACE, in, count, MPI_INT, MPI_MAX);
    FORMS({ clear(); for (int i = 0; i < count; i++) out[i] = value(rank, i); },
          if (rank == size - 1) for (int i = 0; i < count; i++) CHECK(in[i] == total + size * (i * 7 + 1)),
          Reduce, out, in, count, MPI_INT, MPI_SUM, size - 1);
    int before = rank * (rank - 1) / 2 * 100003, upto = rank * (rank + 1) / 2 * 100003;
    FORMS({ clear(); for (int i = 0; i < count; i++) out[i] = value(rank, i); },
          for (int i = 0; i < count; i++) CHECK(in[i] == upto + (rank + 1) * (i * 7 + 1)),
          Scan, out, in, count, MPI_INT, MPI_SUM);
    FORMS({ clear(); for (int i = 0; i < count; i++) out[i] = value(rank, i); },
          if (rank > 0) for (int i = 0; i < count; i++) CHECK(in[i] == before + rank * (i * 7 + 1)),
          Exscan, out, in, count, MPI_INT, MPI_SUM);
    FORMS({ clear(); for (int i = 0; i < count * size; i++) out[i] = value(rank, i); },
          for (int i = 0; i < count; i++) CHECK(in[i] == total + size * ((rank * count + i) * 7 + 1)),
          Reduce_scatter_block, out, in, count, MPI_INT, MPI_SUM);
    int counts[RANKS], first = 0, all = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = count + r;
        if (r < rank) first += counts[r];
        all += counts[r];
    }
    FORMS({ clear(); for (int i = 0; i < all; i++) out[i] = value(rank, i); },
          for (int i = 0; i < counts[rank]; i++) CHECK(in[i] == total + size * ((first + i) * 7 + 1)),
          Reduce_scatter, out, in, counts, MPI_INT, MPI_SUM);
    /* An operation of the program on a type of the program. */
    MPI_Op op;
    MPI_Datatype matrix;
    int commutes = 1;
    OK(MPI_Op_create(multiply, 0, &op));
    OK(MPI_Op_commutative(op, &commutes));
    CHECK(!commutes);
    OK(MPI_Type_contiguous(4, MPI_UNSIGNED, &matrix));
    OK(MPI_Type_commit(&matrix));
    int n = count / 4;
    unsigned *source = (unsigned *)out, *result = (unsigned *)in, expected[4] = {1, 0, 0, 1};
    for (int r = 0; r < size; r++) {
        unsigned factor[4] = {1, r + 2, r, 1}, copy[4];
        int one = 1;
        memcpy(copy, factor, sizeof copy);
        multiply(expected, copy, &one, &matrix);
        memcpy(expected, copy, sizeof copy);
    }
    FORMS({ clear(); for (int i = 0; i < n; i++) { source[4 * i] = 1; source[4 * i + 1] = rank + 2;
                                                  source[4 * i + 2] = rank; source[4 * i + 3] = 1; } },
          for (int i = 0; i < n; i++) CHECK(memcmp(result + 4 * i, expected, sizeof expected) == 0),
          Allreduce, out, in, n, matrix, op);
    OK(MPI_Type_free(&matrix));
    OK(MPI_Op_free(&op));
    CHECK(op == MPI_OP_NULL);
    struct { double value; int index; } best = {rank == 1 ? 9.5 : rank, rank}, found = {0, -1};
    OK(MPI_Allreduce(&best, &found, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm));
    CHECK(size == 1 || (found.value == 9.5 && found.index == 1));
    int left = 3, right = 4;
    OK(MPI_Reduce_local(&left, &right, 1, MPI_INT, MPI_PROD));
    CHECK(right == 12);
}

static void scattered(void) {
    /* Every second element of a row. */
    MPI_Datatype type;
    OK(MPI_Type_vector(50, 1, 2, MPI_INT, &type));
    MPI_Datatype row;
    OK(MPI_Type_create_resized(type, 0, 100 * sizeof(int), &row));
    OK(MPI_Type_commit(&row));
    clear();
    for (int i = 0; i < 100; i++) out[i] = value(rank, i);
    OK(MPI_Allgather(out, 1, row, in, 1, row, comm));
    for (int r = 0; r < size; r++)
        for (int i = 0; i < 100; i++) CHECK(in[r * 100 + i] == (i % 2 ? (int)0xeeeeeeee : value(r, i)));
    clear();
    OK(MPI_Allgather(out, 1, row, in, 50, MPI_INT, comm));
    for (int r = 0; r < size; r++)
        for (int i = 0; i < 50; i++) CHECK(in[r * 50 + i] == value(r, 2 * i));
    OK(MPI_Type_free(&row));
    OK(MPI_Type_free(&type));
}

static void neighbours(void) {
    MPI_Comm grid;
    int dims[1] = {size}, periods[1] = {1}, before, after, got[2], mine[2];
    OK(MPI_Cart_create(comm, 1, dims, periods, 0, &grid));
    OK(MPI_Cart_shift(grid, 0, 1, &before, &after));
    mine[0] = rank * 2;
    mine[1] = rank * 2 + 1;
    OK(MPI_Neighbor_allgather(mine, 1, MPI_INT, got, 1, MPI_INT, grid));
    CHECK(got[0] == before * 2 && got[1] == after * 2);
    OK(MPI_Neighbor_alltoall(mine, 1, MPI_INT, got, 1, MPI_INT, grid));
    /* The one before sent its block for the one after it, which is here. */
    CHECK(got[0] == before * 2 + 1 && got[1] == after * 2);
    MPI_Request request;
    OK(MPI_Ineighbor_alltoall(mine, 1, MPI_INT, got, 1, MPI_INT, grid, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(got[0] == before * 2 + 1 && got[1] == after * 2);
    OK(MPI_Comm_free(&grid));
}

/* In place, a rank's part comes to the front of its buffer; what is behind it stays. */
static void parts_in_place(int n) {
    int counts[RANKS], total = 0, before = 0, *buf;
    MPI_Request request;
    for (int equal = 0; equal < 2; equal++)
        for (int later = 0; later < 2; later++) {
            total = before = 0;
            for (int i = 0; i < size; i++) {
                counts[i] = equal ? n : n + i;
                total += counts[i];
                if (i < rank) before += counts[i];
            }
            buf = malloc((size_t)total * sizeof *buf);
            for (int i = 0; i < total; i++) buf[i] = 100000 * rank + i;
            if (equal && later) {
                OK(MPI_Ireduce_scatter_block(MPI_IN_PLACE, buf, n, MPI_INT, MPI_SUM, comm, &request));
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            } else if (equal) {
                OK(MPI_Reduce_scatter_block(MPI_IN_PLACE, buf, n, MPI_INT, MPI_SUM, comm));
            } else if (later) {
                OK(MPI_Ireduce_scatter(MPI_IN_PLACE, buf, counts, MPI_INT, MPI_SUM, comm, &request));
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            } else {
                OK(MPI_Reduce_scatter(MPI_IN_PLACE, buf, counts, MPI_INT, MPI_SUM, comm));
            }
            for (int i = 0; i < counts[rank]; i++)
                CHECK(buf[i] == 100000 * (size * (size - 1) / 2) + size * (before + i));
            for (int i = counts[rank]; i < total; i++) CHECK(buf[i] == 100000 * rank + i);
            free(buf);
        }
}

/* In a row, by the blocking calls: the root's part is in place, and the root's buffer is of another type than the
   others' buffers. What lies between the parts of the root's buffer stays. */
static void rooted_in_place(int n) {
    MPI_Datatype spread;
    OK(MPI_Type_vector(n, 1, 2, MPI_INT, &spread));
    OK(MPI_Type_commit(&spread));
    /* Of nothing, a count of nothing: MPICH waits for ever for one element without bytes. */
    int elements = n > 0;
    size_t place = n > 0 ? 2 * (size_t)n - 1 : 0, ints = place * (size_t)size;
    int *all = malloc((ints + 1) * sizeof *all), *one = malloc(((size_t)n + 1) * sizeof *one);
    for (int round = 0; round < 30; round++) {
        int root = round / 10 % size, me = rank == root;
        for (int part = 0; part < size; part++)
            for (size_t i = 0; i < place; i++)
                all[(size_t)part * place + i] = i % 2 ? -1 : part == rank ? 1000 * part + (int)i / 2 + round : -2;
        for (int i = 0; i < n; i++) one[i] = 1000 * rank + i + round;
        if (me)
            OK(MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, elements, spread, root, comm));
        else
            OK(MPI_Gather(one, n, MPI_INT, NULL, 0, MPI_DATATYPE_NULL, root, comm));
        for (size_t i = 0; me && i < ints; i++) {
            size_t at = i % place;
            CHECK(all[i] == (at % 2 ? -1 : 1000 * (int)(i / place) + (int)at / 2 + round));
        }
        for (int i = 0; i < n; i++) one[i] = -3;
        if (me)
            OK(MPI_Scatter(all, elements, spread, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, comm));
        else
            OK(MPI_Scatter(NULL, 0, MPI_DATATYPE_NULL, one, n, MPI_INT, root, comm));
        for (int i = 0; i < n; i++) CHECK(one[i] == (me ? -3 : 1000 * rank + i + round));
        for (size_t i = 0; me && i < ints; i++) {
            size_t at = i % place;
            CHECK(all[i] == (at % 2 ? -1 : 1000 * (int)(i / place) + (int)at / 2 + round));
        }
    }
    free(all);
    free(one);
    OK(MPI_Type_free(&spread));
}

static void all(void) {
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    CHECK(size <= RANKS);
    int counts[] = {0, 1, 13, 1000, MOST - RANKS};
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        OK(MPI_Barrier(comm));
        data(counts[i]);
        vectors(counts[i] / 2);
        reductions(counts[i] - counts[i] / 8);
        parts_in_place(counts[i] / 3);
        rooted_in_place(counts[i]);
    }
    MPI_Request request;
    OK(MPI_Ibarrier(comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    scattered();
    neighbours();
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    comm = MPI_COMM_WORLD;
    all();
    MPI_Comm world = MPI_COMM_WORLD;
    int me, n;
    MPI_Comm_rank(world, &me);
    MPI_Comm_size(world, &n);
    OK(MPI_Comm_split(world, me % 2, -me, &comm));
    all();
    OK(MPI_Comm_free(&comm));
    OK(MPI_Comm_dup(world, &comm));
    all();
    OK(MPI_Comm_free(&comm));
    comm = MPI_COMM_SELF;
    all();
    OK(MPI_Finalize());
    return 0;
}
