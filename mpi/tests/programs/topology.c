/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Process topologies: grids without dimensions, edges, graphs with and without weights, what is
   refused. */
#include "check.h"
#include <limits.h>

static int rank, size;

static int kind_of(MPI_Comm comm) {
    int kind;
    OK(MPI_Topo_test(comm, &kind));
    return kind;
}

/* A grid of one process and no dimension answers every question. */
static void is_point(MPI_Comm comm) {
    int n = 7, untouched[3] = {1, 2, 3}, at;
    CHECK(kind_of(comm) == MPI_CART);
    OK(MPI_Comm_size(comm, &n));
    CHECK(n == 1);
    OK(MPI_Cartdim_get(comm, &n));
    CHECK(n == 0);
    OK(MPI_Cart_get(comm, 3, untouched, untouched + 1, untouched + 2));
    OK(MPI_Cart_get(comm, 0, NULL, NULL, NULL));
    OK(MPI_Cart_coords(comm, 0, 3, untouched));
    OK(MPI_Cart_coords(comm, 0, 0, NULL));
    CHECK(untouched[0] == 1 && untouched[1] == 2 && untouched[2] == 3);
    at = -1;
    OK(MPI_Cart_rank(comm, untouched, &at));
    CHECK(at == 0);
    at = -1;
    OK(MPI_Cart_rank(comm, NULL, &at));
    CHECK(at == 0);
    OK(MPI_Cart_map(comm, 0, NULL, NULL, &at));
    CHECK(at == 0);
    OK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    RAISES(MPI_ERR_ARG, MPI_Cart_shift(comm, 0, 1, &at, &n));
    RAISES(MPI_ERR_RANK, MPI_Cart_coords(comm, 1, 0, NULL));
    RAISES(MPI_ERR_TOPOLOGY, MPI_Graphdims_get(comm, &at, &n));
    int out = 5, in = 6;
    OK(MPI_Neighbor_allgather(&out, 1, MPI_INT, &in, 1, MPI_INT, comm));
    OK(MPI_Neighbor_alltoall(&out, 1, MPI_INT, &in, 1, MPI_INT, comm));
    CHECK(in == 6);
    OK(MPI_Allreduce(&out, &in, 1, MPI_INT, MPI_SUM, comm));
    CHECK(in == 5);
    MPI_Comm copy, part;
    OK(MPI_Comm_dup(comm, &copy));
    CHECK(kind_of(copy) == MPI_CART);
    OK(MPI_Cartdim_get(copy, &n));
    CHECK(n == 0);
    OK(MPI_Comm_free(&copy));
    OK(MPI_Cart_sub(comm, NULL, &part));
    OK(MPI_Cartdim_get(part, &n));
    CHECK(n == 0 && kind_of(part) == MPI_CART);
    OK(MPI_Comm_free(&part));
}

static void points(void) {
    MPI_Comm comm, grid;
    int at = -1, dims[2] = {size, 1}, periods[2] = {0, 1}, none[2] = {0, 0}, all[2] = {1, 1},
        last[2] = {0, 1};
    OK(MPI_Cart_create(MPI_COMM_WORLD, 0, NULL, NULL, 0, &comm));
    CHECK((comm == MPI_COMM_NULL) == (rank != 0));
    if (rank == 0) {
        is_point(comm);
        OK(MPI_Comm_free(&comm));
    }
    OK(MPI_Cart_map(MPI_COMM_WORLD, 0, NULL, NULL, &at));
    CHECK(at == (rank == 0 ? 0 : MPI_UNDEFINED));
    OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &grid));
    OK(MPI_Cart_sub(grid, none, &comm));
    is_point(comm);
    OK(MPI_Comm_free(&comm));
    OK(MPI_Cart_sub(grid, all, &comm));
    int result, found[2], wraps[2], where[2];
    OK(MPI_Comm_compare(comm, grid, &result));
    CHECK(result == MPI_CONGRUENT);
    OK(MPI_Cart_get(comm, 2, found, wraps, where));
    CHECK(found[0] == size && found[1] == 1 && !wraps[0] && wraps[1] && where[0] == rank
        && where[1] == 0);
    OK(MPI_Comm_free(&comm));
    OK(MPI_Cart_sub(grid, last, &comm));
    OK(MPI_Cart_get(comm, 1, found, wraps, where));
    CHECK(found[0] == 1 && wraps[0] && where[0] == 0);
    OK(MPI_Comm_free(&comm));
    OK(MPI_Comm_free(&grid));
}

/* Steps of any length, and neighbours that are not there. */
static void edges(void) {
    MPI_Comm line, ring;
    int before, after;
    for (int wraps = 0; wraps < 2; wraps++) {
        OK(MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &wraps, 0, &line));
        int steps[] = {0, 1, -1, size, size + 1, -size - 1, INT_MAX, -INT_MAX};
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            long long to = (long long)rank + steps[i], from = (long long)rank - steps[i];
            OK(MPI_Cart_shift(line, 0, steps[i], &before, &after));
            if (wraps) {
                CHECK(after == ((to % size) + size) % size
                    && before == ((from % size) + size) % size);
            } else {
                CHECK(after == (to < 0 || to >= size ? MPI_PROC_NULL : to));
                CHECK(before == (from < 0 || from >= size ? MPI_PROC_NULL : from));
            }
        }
        OK(MPI_Comm_set_errhandler(line, MPI_ERRORS_RETURN));
        RAISES(MPI_ERR_ARG, MPI_Cart_shift(line, 1, 1, &before, &after));
        RAISES(MPI_ERR_ARG, MPI_Cart_shift(line, -1, 1, &before, &after));
        int place = size;
        if (wraps) {
            OK(MPI_Cart_rank(line, &place, &before));
            CHECK(before == 0);
        } else {
            RAISES(MPI_ERR_ARG, MPI_Cart_rank(line, &place, &before));
        }
        /* What goes to nobody stays, what comes from nobody is not touched. */
        int out[2] = {10 * rank, 10 * rank + 1}, in[2] = {-1, -1}, mine = rank;
        OK(MPI_Neighbor_alltoall(out, 1, MPI_INT, in, 1, MPI_INT, line));
        int left = rank > 0 || wraps ? (rank + size - 1) % size : -1;
        int right = rank + 1 < size || wraps ? (rank + 1) % size : -1;
        CHECK(in[0] == (left < 0 ? -1 : 10 * left + 1) && in[1] == (right < 0 ? -1 : 10 * right));
        in[0] = in[1] = -1;
        OK(MPI_Neighbor_allgather(&mine, 1, MPI_INT, in, 1, MPI_INT, line));
        CHECK(in[0] == left && in[1] == right);
        /* A type that nothing is sent of need not be one. */
        int none[2] = {0, 0};
        MPI_Aint at[2] = {0, 0};
        MPI_Datatype nulls[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
        OK(MPI_Neighbor_alltoallw(out, none, at, nulls, in, none, at, nulls, line));
        OK(MPI_Comm_free(&line));
    }
    /* A part of the processes. */
    int few = size - 1;
    if (size > 1) {
        OK(MPI_Cart_create(MPI_COMM_WORLD, 1, &few, &(int){0}, 0, &ring));
        CHECK((ring == MPI_COMM_NULL) == (rank == few));
        if (ring != MPI_COMM_NULL) OK(MPI_Comm_free(&ring));
        OK(MPI_Cart_map(MPI_COMM_WORLD, 1, &few, &(int){0}, &before));
        CHECK(before == (rank == few ? MPI_UNDEFINED : rank));
    }
}

static void refused(void) {
    MPI_Comm comm = MPI_COMM_WORLD;
    int wide[2] = {size, 2}, bad[2] = {size, -1}, periods[5] = {0}, n, at;
    int huge[5] = {1 << 16, 1 << 16, 1 << 16, 1 << 16, 1 << 16};
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    RAISES(MPI_ERR_DIMS, MPI_Cart_create(MPI_COMM_WORLD, 2, wide, periods, 0, &comm));
    CHECK(comm == MPI_COMM_NULL);
    RAISES(MPI_ERR_DIMS, MPI_Cart_create(MPI_COMM_WORLD, 4, huge, periods, 0, &comm));
    RAISES(MPI_ERR_DIMS, MPI_Cart_create(MPI_COMM_WORLD, 5, huge, periods, 0, &comm));
    RAISES(MPI_ERR_DIMS, MPI_Cart_create(MPI_COMM_WORLD, 2, bad, periods, 0, &comm));
    RAISES(MPI_ERR_DIMS, MPI_Cart_create(MPI_COMM_WORLD, -1, bad, periods, 0, &comm));
    RAISES(MPI_ERR_DIMS, MPI_Cart_map(MPI_COMM_WORLD, 4, huge, periods, &at));
    RAISES(MPI_ERR_TOPOLOGY, MPI_Cartdim_get(MPI_COMM_WORLD, &n));
    RAISES(MPI_ERR_TOPOLOGY, MPI_Cart_rank(MPI_COMM_WORLD, wide, &n));
    RAISES(MPI_ERR_TOPOLOGY, MPI_Graphdims_get(MPI_COMM_WORLD, &n, &at));
    RAISES(MPI_ERR_TOPOLOGY, MPI_Dist_graph_neighbors_count(MPI_COMM_WORLD, &n, &at, &at));
    RAISES(MPI_ERR_TOPOLOGY, MPI_Neighbor_allgather(&n, 1, MPI_INT, &at, 1, MPI_INT,
        MPI_COMM_WORLD));
    CHECK(kind_of(MPI_COMM_WORLD) == MPI_UNDEFINED);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
}

static void dimensions_are(int nodes, int n, const int *given, const int *expected) {
    int dims[12];
    for (int i = 0; i < n; i++) dims[i] = given ? given[i] : 0;
    OK(MPI_Dims_create(nodes, n, dims));
    for (int i = 0; i < n; i++) CHECK(dims[i] == expected[i]);
}

static void dimensions(void) {
    dimensions_are(1, 0, NULL, NULL);
    dimensions_are(12, 3, NULL, (int[]){3, 2, 2});
    dimensions_are(7488, 3, NULL, (int[]){26, 18, 16});
    dimensions_are(60, 3, (int[]){0, 5, 0}, (int[]){4, 5, 3});
    dimensions_are(6, 2, (int[]){3, 2}, (int[]){3, 2});
    dimensions_are(5, 4, (int[]){0, 1, 0, 1}, (int[]){5, 1, 1, 1});
    dimensions_are(INT_MAX, 2, NULL, (int[]){INT_MAX, 1});
    dimensions_are(1 << 30, 10, NULL, (int[]){8, 8, 8, 8, 8, 8, 8, 8, 8, 8});
    int bad[4] = {1 << 16, 1 << 16, 1 << 16, 1 << 16}, two[2] = {4, 0};
    RAISES(MPI_ERR_DIMS, MPI_Dims_create(4, 4, bad));
    RAISES(MPI_ERR_DIMS, MPI_Dims_create(6, 2, two));
    RAISES(MPI_ERR_DIMS, MPI_Dims_create(2, 0, two));
    two[1] = -1;
    RAISES(MPI_ERR_DIMS, MPI_Dims_create(4, 2, two));
    RAISES(MPI_ERR_DIMS, MPI_Dims_create(4, -1, two));
    two[1] = 0;
    RAISES(MPI_ERR_DIMS, MPI_Dims_create(0, 2, two));
}

static void graphs(void) {
    MPI_Comm comm = MPI_COMM_SELF;
    int nodes, edges, n;
    OK(MPI_Graph_create(MPI_COMM_WORLD, 0, NULL, NULL, 0, &comm));
    CHECK(comm == MPI_COMM_NULL);
    /* The first node has itself, twice, and no other has any. */
    int *ends = malloc(size * sizeof *ends), list[2] = {0, 0}, got[2] = {-1, -1};
    for (int i = 0; i < size; i++) ends[i] = 2;
    OK(MPI_Graph_create(MPI_COMM_WORLD, size, ends, list, 0, &comm));
    CHECK(kind_of(comm) == MPI_GRAPH);
    OK(MPI_Graphdims_get(comm, &nodes, &edges));
    CHECK(nodes == size && edges == 2);
    OK(MPI_Graph_neighbors_count(comm, rank, &n));
    CHECK(n == (rank == 0 ? 2 : 0));
    OK(MPI_Graph_neighbors(comm, 0, 2, got));
    CHECK(got[0] == 0 && got[1] == 0);
    int in[2] = {-1, -1}, out[2] = {4, 5};
    OK(MPI_Neighbor_alltoall(out, 1, MPI_INT, in, 1, MPI_INT, comm));
    CHECK(rank == 0 ? in[0] == 4 && in[1] == 5 : in[0] == -1);
    OK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    RAISES(MPI_ERR_RANK, MPI_Graph_neighbors_count(comm, size, &n));
    RAISES(MPI_ERR_TOPOLOGY, MPI_Cartdim_get(comm, &n));
    OK(MPI_Comm_free(&comm));
    OK(MPI_Graph_map(MPI_COMM_WORLD, 1, (int[]){0}, NULL, &n));
    CHECK(n == (rank == 0 ? 0 : MPI_UNDEFINED));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    list[1] = size;
    RAISES(MPI_ERR_ARG, MPI_Graph_create(MPI_COMM_WORLD, size, ends, list, 0, &comm));
    if (size > 1) {
        ends[1] = 1;
        RAISES(MPI_ERR_ARG, MPI_Graph_create(MPI_COMM_WORLD, size, ends, list, 0, &comm));
    }
    RAISES(MPI_ERR_ARG, MPI_Graph_create(MPI_COMM_WORLD, size + 1, ends, list, 0, &comm));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    free(ends);
}

/* Only the first member knows the graph, a ring; whether it has weights is known by all. */
static void one_tells_all(int weighted) {
    MPI_Comm comm;
    int *who = malloc(size * sizeof *who), *degrees = malloc(size * sizeof *who),
        *to = malloc(size * sizeof *who),
        *weights = malloc(size * sizeof *who);
    for (int i = 0; i < size; i++) who[i] = i, degrees[i] = 1, to[i] = (i + 1) % size,
        weights[i] = 50 + i;
    int n = rank == 0 ? size : 0, in, out, has;
    int *given = !weighted ? MPI_UNWEIGHTED : rank == 0 ? weights : MPI_WEIGHTS_EMPTY;
    /* A member without edges may name no list at all. */
    if (rank == 1) given = NULL;
    OK(MPI_Dist_graph_create(MPI_COMM_WORLD, n, who, degrees, to, given, MPI_INFO_NULL, 0, &comm));
    CHECK(kind_of(comm) == MPI_DIST_GRAPH);
    OK(MPI_Dist_graph_neighbors_count(comm, &in, &out, &has));
    CHECK(in == 1 && out == 1 && has == weighted);
    int from, next, from_weight = -1, next_weight = -1;
    OK(MPI_Dist_graph_neighbors(comm, 1, &from, &from_weight, 1, &next, &next_weight));
    CHECK(from == (rank + size - 1) % size && next == (rank + 1) % size);
    CHECK(from_weight == (weighted ? 50 + from : -1) && next_weight == (weighted ? 50 + rank : -1));
    OK(MPI_Dist_graph_neighbors(comm, 1, &from, MPI_UNWEIGHTED, 1, &next, MPI_UNWEIGHTED));
    int got = -1;
    OK(MPI_Neighbor_alltoall(&rank, 1, MPI_INT, &got, 1, MPI_INT, comm));
    CHECK(got == from);
    OK(MPI_Comm_free(&comm));
    free(who);
    free(degrees);
    free(to);
    free(weights);
}

static void distributed(void) {
    one_tells_all(0);
    one_tells_all(1);
    MPI_Comm comm, copy;
    int in, out, has, to[2] = {rank, rank}, weights[2] = {3, 4}, from[2], inward[2], next[2],
        outward[2];
    /* Nobody has any edge. */
    OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 0, NULL, MPI_WEIGHTS_EMPTY, 0, NULL,
        MPI_WEIGHTS_EMPTY,
                                      MPI_INFO_NULL, 0, &comm));
    OK(MPI_Dist_graph_neighbors_count(comm, &in, &out, &has));
    CHECK(in == 0 && out == 0 && has);
    OK(MPI_Dist_graph_neighbors(comm, 0, NULL, NULL, 0, NULL, NULL));
    OK(MPI_Comm_free(&comm));
    OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 0, NULL, MPI_UNWEIGHTED, 0, NULL,
        MPI_UNWEIGHTED,
                                      MPI_INFO_NULL, 0, &comm));
    OK(MPI_Dist_graph_neighbors_count(comm, &in, &out, &has));
    CHECK(in == 0 && out == 0 && !has);
    OK(MPI_Comm_free(&comm));
    /* Each has itself twice. */
    OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, to, weights, 2, to, weights,
        MPI_INFO_NULL, 0, &comm));
    OK(MPI_Comm_dup(comm, &copy));
    OK(MPI_Comm_free(&comm));
    OK(MPI_Dist_graph_neighbors(copy, 2, from, inward, 2, next, outward));
    CHECK(from[1] == rank && next[0] == rank && inward[0] == 3 && outward[1] == 4);
    int values[2] = {7, 8}, got[2] = {0, 0};
    OK(MPI_Neighbor_alltoall(values, 1, MPI_INT, got, 1, MPI_INT, copy));
    CHECK(got[0] == 7 && got[1] == 8);
    OK(MPI_Comm_free(&copy));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    to[1] = size;
    RAISES(MPI_ERR_RANK, MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, to, MPI_UNWEIGHTED, 0,
        NULL,
                                                        MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &comm));
    to[1] = rank;
    RAISES(MPI_ERR_ARG, MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, to, MPI_WEIGHTS_EMPTY, 2,
        to, weights,
                                                       MPI_INFO_NULL, 0, &comm));
    weights[0] = -1;
    RAISES(MPI_ERR_ARG, MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, to, weights, 2, to,
        weights,
                                                       MPI_INFO_NULL, 0, &comm));
    RAISES(MPI_ERR_ARG, MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, -1, to, weights, 2, to,
        weights,
                                                       MPI_INFO_NULL, 0, &comm));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    points();
    edges();
    refused();
    dimensions();
    graphs();
    distributed();
    OK(MPI_Finalize());
    return 0;
}
