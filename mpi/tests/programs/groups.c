/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Groups at their limits: empty ones, whole ones, ranges either way, ranks that are not there. */
#include "check.h"
#include <limits.h>

static int rank, size;
static MPI_Group world;

/* A group has exactly these ranks of the job, and is freed. */
static void is(MPI_Group group, int n, const int *ranks) {
    int found, there;
    OK(MPI_Group_size(group, &found));
    CHECK(found == n);
    int mine = MPI_UNDEFINED;
    for (int i = 0; i < n; i++) {
        OK(MPI_Group_translate_ranks(group, 1, &i, world, &there));
        CHECK(there == ranks[i]);
        if (ranks[i] == rank) mine = i;
    }
    OK(MPI_Group_rank(group, &found));
    CHECK(found == mine && (n > 0 || group == MPI_GROUP_EMPTY));
    OK(MPI_Group_free(&group));
    CHECK(group == MPI_GROUP_NULL);
}

static void whole_and_empty(void) {
    MPI_Group made, none = MPI_GROUP_EMPTY;
    int *all = malloc(size * sizeof *all), *back = malloc(size * sizeof *back), result;
    for (int i = 0; i < size; i++) all[i] = i, back[i] = size - 1 - i;
    OK(MPI_Group_incl(world, 0, NULL, &made));
    is(made, 0, NULL);
    OK(MPI_Group_incl(world, size, back, &made));
    OK(MPI_Group_compare(made, world, &result));
    CHECK(result == (size > 1 ? MPI_SIMILAR : MPI_IDENT));
    is(made, size, back);
    OK(MPI_Group_excl(world, 0, NULL, &made));
    OK(MPI_Group_compare(made, world, &result));
    CHECK(result == MPI_IDENT);
    is(made, size, all);
    OK(MPI_Group_excl(world, size, back, &made));
    is(made, 0, NULL);
    OK(MPI_Group_range_incl(world, 0, NULL, &made));
    is(made, 0, NULL);
    OK(MPI_Group_range_excl(world, 0, NULL, &made));
    is(made, size, all);
    OK(MPI_Group_incl(none, 0, NULL, &made));
    is(made, 0, NULL);
    OK(MPI_Group_range_excl(none, 0, NULL, &made));
    is(made, 0, NULL);
    OK(MPI_Group_compare(none, MPI_GROUP_EMPTY, &result));
    CHECK(result == MPI_IDENT);
    OK(MPI_Group_compare(none, world, &result));
    CHECK(result == MPI_UNEQUAL);
    OK(MPI_Group_union(none, world, &made));
    is(made, size, all);
    OK(MPI_Group_union(none, none, &made));
    is(made, 0, NULL);
    OK(MPI_Group_intersection(world, none, &made));
    is(made, 0, NULL);
    OK(MPI_Group_difference(world, none, &made));
    is(made, size, all);
    OK(MPI_Group_difference(none, world, &made));
    is(made, 0, NULL);
    OK(MPI_Group_difference(world, world, &made));
    is(made, 0, NULL);
    RAISES(MPI_ERR_RANK, MPI_Group_incl(none, 1, all, &made));
    MPI_Comm comm;
    OK(MPI_Comm_create(MPI_COMM_WORLD, none, &comm));
    CHECK(comm == MPI_COMM_NULL);
    OK(MPI_Comm_create_group(MPI_COMM_WORLD, none, 1, &comm));
    CHECK(comm == MPI_COMM_NULL);
    free(all);
    free(back);
}

static void ranges(void) {
    MPI_Group made;
    int all[64], n = 0;
    /* Backwards through all, each for itself, and a last one that is not met. */
    int down[1][3] = {{size - 1, 0, -1}};
    for (int i = 0; i < size; i++) all[i] = size - 1 - i;
    OK(MPI_Group_range_incl(world, 1, down, &made));
    is(made, size, all);
    OK(MPI_Group_range_excl(world, 1, down, &made));
    is(made, 0, NULL);
    int single[64][3];
    for (int i = 0; i < size; i++) single[i][0] = single[i][1] = i, single[i][2] = i % 2 ? -7 : 7,
        all[i] = i;
    OK(MPI_Group_range_incl(world, size, single, &made));
    is(made, size, all);
    int beyond[1][3] = {{0, size, 2}};
    for (int i = 0; i <= size; i += 2) all[n++] = i;
    if (size % 2) {
        OK(MPI_Group_range_incl(world, 1, beyond, &made));
        is(made, n, all);
    } else {
        RAISES(MPI_ERR_RANK, MPI_Group_range_incl(world, 1, beyond, &made));
    }
    int far[1][3] = {{0, size + 5, size + 6}}, below[1][3] = {{0, -1, -2}}, first[1] = {0};
    OK(MPI_Group_range_incl(world, 1, far, &made));
    is(made, 1, first);
    OK(MPI_Group_range_incl(world, 1, below, &made));
    is(made, 1, first);
    int huge[1][3] = {{0, INT_MAX, INT_MAX}}, endless[1][3] = {{0, INT_MAX, 1}};
    RAISES(MPI_ERR_RANK, MPI_Group_range_incl(world, 1, huge, &made));
    RAISES(MPI_ERR_RANK, MPI_Group_range_incl(world, 1, endless, &made));
    RAISES(MPI_ERR_RANK, MPI_Group_range_excl(world, 1, endless, &made));
    int still[1][3] = {{0, 0, 0}}, away[1][3] = {{0, size, -1}}, outside[1][3] = {{-1, 0, 1}};
    RAISES(MPI_ERR_ARG, MPI_Group_range_incl(world, 1, still, &made));
    RAISES(MPI_ERR_ARG, MPI_Group_range_incl(world, 1, away, &made));
    RAISES(MPI_ERR_RANK, MPI_Group_range_incl(world, 1, outside, &made));
    int twice[2][3] = {{0, 0, 1}, {0, 0, 1}};
    RAISES(MPI_ERR_RANK, MPI_Group_range_incl(world, 2, twice, &made));
    RAISES(MPI_ERR_RANK, MPI_Group_range_excl(world, 2, twice, &made));
    RAISES(MPI_ERR_ARG, MPI_Group_range_incl(world, -1, twice, &made));
}

static void refused(void) {
    MPI_Group made, gone, null = MPI_GROUP_NULL;
    int n, ranks[2] = {0, 0}, out[2];
    RAISES(MPI_ERR_RANK, MPI_Group_incl(world, 2, ranks, &made));
    RAISES(MPI_ERR_RANK, MPI_Group_excl(world, 2, ranks, &made));
    RAISES(MPI_ERR_ARG, MPI_Group_incl(world, -1, ranks, &made));
    for (int i = 0; i < 3; i++) {
        ranks[0] = i == 0 ? size : i == 1 ? -1 : MPI_PROC_NULL;
        RAISES(MPI_ERR_RANK, MPI_Group_incl(world, 1, ranks, &made));
        RAISES(MPI_ERR_RANK, MPI_Group_excl(world, 1, ranks, &made));
        if (i < 2) RAISES(MPI_ERR_RANK, MPI_Group_translate_ranks(world, 1, ranks, world, out));
    }
    RAISES(MPI_ERR_ARG, MPI_Group_translate_ranks(world, -1, ranks, world, out));
    RAISES(MPI_ERR_GROUP, MPI_Group_rank(null, &n));
    RAISES(MPI_ERR_GROUP, MPI_Group_compare(world, null, &n));
    RAISES(MPI_ERR_GROUP, MPI_Group_union(null, world, &made));
    RAISES(MPI_ERR_GROUP, MPI_Group_free(&null));
    OK(MPI_Group_incl(world, 1, (int[]){0}, &gone));
    made = gone;
    OK(MPI_Group_free(&made));
    RAISES(MPI_ERR_GROUP, MPI_Group_size(gone, &n));
    RAISES(MPI_ERR_GROUP, MPI_Group_free(&gone));
}

static void translated(void) {
    MPI_Group odd;
    int range[1][3] = {{1, size - 1, 2}}, ranks[3] = {0, MPI_PROC_NULL, size - 1}, out[3] = {7, 7,
        7};
    if (size > 1) OK(MPI_Group_range_incl(world, 1, range, &odd));
    else odd = MPI_GROUP_EMPTY;
    OK(MPI_Group_translate_ranks(world, 3, ranks, odd, out));
    CHECK(out[0] == MPI_UNDEFINED && out[1] == MPI_PROC_NULL);
    CHECK(out[2] == (size % 2 ? MPI_UNDEFINED : size / 2 - 1));
    OK(MPI_Group_translate_ranks(odd, 1, &(int){MPI_PROC_NULL}, MPI_GROUP_EMPTY, out));
    CHECK(out[0] == MPI_PROC_NULL);
    OK(MPI_Group_translate_ranks(world, 0, NULL, odd, NULL));
    /* Members of the first come first, those of the second in their order. */
    MPI_Group both, rest, common;
    int down[1][3] = {{size - 1, 0, -1}}, expected[64], n = 0;
    MPI_Group reverse;
    OK(MPI_Group_range_incl(world, 1, down, &reverse));
    OK(MPI_Group_union(odd, reverse, &both));
    for (int i = 1; i < size; i += 2) expected[n++] = i;
    for (int i = size - 1; i >= 0; i--)
        if (i % 2 == 0) expected[n++] = i;
    is(both, n, expected);
    n = 0;
    OK(MPI_Group_difference(reverse, odd, &rest));
    for (int i = size - 1; i >= 0; i--)
        if (i % 2 == 0) expected[n++] = i;
    is(rest, n, expected);
    n = 0;
    OK(MPI_Group_intersection(reverse, odd, &common));
    for (int i = size - 1; i >= 0; i--)
        if (i % 2 == 1) expected[n++] = i;
    is(common, n, expected);
    OK(MPI_Group_free(&reverse));
    OK(MPI_Group_free(&odd));
}

/* A group stays while a communicator is made of it, and the other way round. */
static void outlives(void) {
    MPI_Group group;
    MPI_Comm comm;
    int n;
    OK(MPI_Group_range_incl(world, 1, (int[1][3]){{size - 1, 0, -1}}, &group));
    OK(MPI_Comm_create(MPI_COMM_WORLD, group, &comm));
    OK(MPI_Group_free(&group));
    OK(MPI_Comm_rank(comm, &n));
    CHECK(n == size - 1 - rank);
    OK(MPI_Comm_group(comm, &group));
    OK(MPI_Comm_free(&comm));
    OK(MPI_Group_rank(group, &n));
    CHECK(n == size - 1 - rank);
    OK(MPI_Group_free(&group));
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    OK(MPI_Comm_group(MPI_COMM_WORLD, &world));
    whole_and_empty();
    ranges();
    refused();
    translated();
    outlives();
    OK(MPI_Group_free(&world));
    OK(MPI_Finalize());
    return 0;
}
