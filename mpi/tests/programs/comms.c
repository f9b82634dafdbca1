/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Groups, communicators, attributes, topologies, names, info objects. */
#include "check.h"

static int rank, size;

static int copies, deletes;

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm, (void)key;
    CHECK(extra == &copies);
    *(void **)out = (char *)in + 1;
    *flag = 1;
    copies++;
    return MPI_SUCCESS;
}

static int delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value;
    CHECK(extra == &copies);
    deletes++;
    return MPI_SUCCESS;
}

static void talk(MPI_Comm comm) {
    int me, n, got = -1;
    MPI_Status status;
    OK(MPI_Comm_rank(comm, &me));
    OK(MPI_Comm_size(comm, &n));
    OK(MPI_Sendrecv(&me, 1, MPI_INT, (me + 1) % n, 5, &got, 1, MPI_INT, MPI_ANY_SOURCE, 5, comm, &status));
    CHECK(got == (me + n - 1) % n && status.MPI_SOURCE == got);
}

static void groups(void) {
    MPI_Group world, odd, even, both, none;
    OK(MPI_Comm_group(MPI_COMM_WORLD, &world));
    int range[1][3] = {{0, size - 1, 2}}, n, result;
    OK(MPI_Group_range_incl(world, 1, range, &even));
    OK(MPI_Group_range_excl(world, 1, range, &odd));
    OK(MPI_Group_union(even, odd, &both));
    OK(MPI_Group_compare(both, world, &result));
    CHECK(result == (size > 2 ? MPI_SIMILAR : MPI_IDENT));
    OK(MPI_Group_intersection(even, odd, &none));
    CHECK(none == MPI_GROUP_EMPTY);
    OK(MPI_Group_size(even, &n));
    CHECK(n == (size + 1) / 2);
    OK(MPI_Group_rank(even, &n));
    CHECK(n == (rank % 2 ? MPI_UNDEFINED : rank / 2));
    int ranks[1] = {0}, there[1];
    OK(MPI_Group_translate_ranks(even, 1, ranks, world, there));
    CHECK(there[0] == 0);
    MPI_Comm comm;
    OK(MPI_Comm_create(MPI_COMM_WORLD, even, &comm));
    CHECK((comm == MPI_COMM_NULL) == (rank % 2 == 1));
    if (comm != MPI_COMM_NULL) {
        talk(comm);
        OK(MPI_Comm_free(&comm));
    }
    if (rank % 2 == 0) {
        OK(MPI_Comm_create_group(MPI_COMM_WORLD, even, 3, &comm));
        talk(comm);
        OK(MPI_Comm_free(&comm));
    }
    OK(MPI_Group_free(&world));
    OK(MPI_Group_free(&even));
    OK(MPI_Group_free(&odd));
    OK(MPI_Group_free(&both));
    CHECK(both == MPI_GROUP_NULL);
}

static void communicators(void) {
    MPI_Comm copy_of, parts, later[3];
    int key, result, flag, len;
    char name[MPI_MAX_OBJECT_NAME];
    void *value;
    OK(MPI_Comm_create_keyval(copy, delete, &key, &copies));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &parts));
    OK(MPI_Comm_set_attr(parts, key, (void *)40));
    OK(MPI_Comm_dup(parts, &copy_of));
    CHECK(copies == 1);
    OK(MPI_Comm_get_attr(copy_of, key, &value, &flag));
    CHECK(flag && value == (void *)41);
    OK(MPI_Comm_delete_attr(parts, key));
    OK(MPI_Comm_get_attr(parts, key, &value, &flag));
    CHECK(!flag && deletes == 1);
    OK(MPI_Comm_compare(copy_of, parts, &result));
    CHECK(result == MPI_CONGRUENT);
    OK(MPI_Comm_free(&copy_of));
    CHECK(deletes == 2 && copy_of == MPI_COMM_NULL);
    OK(MPI_Comm_free(&parts));
    OK(MPI_Comm_free_keyval(&key));
    CHECK(key == MPI_KEYVAL_INVALID);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &flag));
    CHECK(flag && *(int *)value >= 32767);

    OK(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &parts));
    talk(parts);
    OK(MPI_Comm_set_name(parts, "half"));
    OK(MPI_Comm_get_name(parts, name, &len));
    CHECK(strcmp(name, "half") == 0 && len == 4);
    OK(MPI_Comm_free(&parts));
    OK(MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &parts));
    CHECK((parts == MPI_COMM_NULL) == (rank == 0));
    if (parts != MPI_COMM_NULL) OK(MPI_Comm_free(&parts));
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &parts));
    OK(MPI_Comm_compare(MPI_COMM_WORLD, parts, &result));
    CHECK(result == MPI_CONGRUENT);
    OK(MPI_Comm_free(&parts));
    MPI_Request requests[3];
    for (int i = 0; i < 3; i++) OK(MPI_Comm_idup(MPI_COMM_WORLD, &later[i], &requests[i]));
    OK(MPI_Waitall(3, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < 3; i++) {
        talk(later[i]);
        OK(MPI_Barrier(later[i]));
        OK(MPI_Comm_free(&later[i]));
    }
    OK(MPI_Comm_get_name(MPI_COMM_WORLD, name, &len));
    CHECK(strcmp(name, "MPI_COMM_WORLD") == 0);
    OK(MPI_Comm_test_inter(MPI_COMM_WORLD, &flag));
    CHECK(!flag);
}

/* On a duplicate that was made without waiting, a collective that must not wait starts before anybody else has come. */
static void early_collectives(void) {
    MPI_Comm copy_of;
    MPI_Request made, sum, last;
    int one = 1, all = 0, first = -1, word = 0, later = 0;
    OK(MPI_Comm_idup(MPI_COMM_WORLD, &copy_of, &made));
    OK(MPI_Wait(&made, MPI_STATUS_IGNORE));
    if (rank > 0) OK(MPI_Recv(&word, 1, MPI_INT, rank - 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Iallreduce(&one, &all, 1, MPI_INT, MPI_SUM, copy_of, &sum));
    if (rank + 1 < size) OK(MPI_Send(&word, 1, MPI_INT, rank + 1, 5, MPI_COMM_WORLD));
    /* The blocking one passes the one under way. */
    int root = size - 1, from = rank;
    OK(MPI_Bcast(&from, 1, MPI_INT, root, copy_of));
    CHECK(from == root);
    OK(MPI_Iscan(&one, &first, 1, MPI_INT, MPI_SUM, copy_of, &last));
    OK(MPI_Wait(&sum, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&last, MPI_STATUS_IGNORE));
    CHECK(all == size && first == rank + 1);
    OK(MPI_Allreduce(&one, &later, 1, MPI_INT, MPI_SUM, copy_of));
    CHECK(later == size);
    OK(MPI_Comm_free(&copy_of));
}

static void topologies(void) {
    int dims[2] = {0, 0}, periods[2] = {1, 0}, coords[2], back, kind;
    MPI_Comm grid, row;
    OK(MPI_Dims_create(size, 2, dims));
    CHECK(dims[0] * dims[1] == size && dims[0] >= dims[1]);
    OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid));
    OK(MPI_Topo_test(grid, &kind));
    CHECK(kind == MPI_CART);
    OK(MPI_Cart_coords(grid, rank, 2, coords));
    OK(MPI_Cart_rank(grid, coords, &back));
    CHECK(back == rank);
    int remain[2] = {1, 0}, n;
    OK(MPI_Cart_sub(grid, remain, &row));
    OK(MPI_Comm_size(row, &n));
    CHECK(n == dims[0]);
    talk(row);
    OK(MPI_Comm_free(&row));
    OK(MPI_Comm_free(&grid));
    int source[1] = {rank}, degree[1] = {1}, dest[1] = {(rank + 1) % size}, weight[1] = {rank + 10};
    int in, out, weighted, sources[1], inw[1], dests[1], outw[1];
    OK(MPI_Dist_graph_create(MPI_COMM_WORLD, 1, source, degree, dest, weight, MPI_INFO_NULL, 0, &grid));
    OK(MPI_Dist_graph_neighbors_count(grid, &in, &out, &weighted));
    CHECK(in == 1 && out == 1 && weighted);
    OK(MPI_Dist_graph_neighbors(grid, 1, sources, inw, 1, dests, outw));
    CHECK(sources[0] == (rank + size - 1) % size && inw[0] == sources[0] + 10);
    CHECK(dests[0] == dest[0] && outw[0] == rank + 10);
    int got = -1;
    OK(MPI_Neighbor_allgather(&rank, 1, MPI_INT, &got, 1, MPI_INT, grid));
    CHECK(got == sources[0]);
    OK(MPI_Comm_free(&grid));
}

static void compares(MPI_Comm a, MPI_Comm b, int expected) {
    int result = -1;
    OK(MPI_Comm_compare(a, b, &result));
    CHECK(result == expected);
    OK(MPI_Comm_compare(b, a, &result));
    CHECK(result == expected);
}

static void related(void) {
    MPI_Comm same, back, alone, all;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &same));
    OK(MPI_Comm_split(MPI_COMM_WORLD, 3, -rank, &back));
    OK(MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone));
    OK(MPI_Comm_split(MPI_COMM_WORLD, 2147483647, 5, &all));
    int here;
    OK(MPI_Comm_rank(back, &here));
    CHECK(here == size - 1 - rank);
    compares(MPI_COMM_WORLD, MPI_COMM_WORLD, MPI_IDENT);
    compares(MPI_COMM_WORLD, same, MPI_CONGRUENT);
    compares(MPI_COMM_WORLD, all, MPI_CONGRUENT);
    compares(MPI_COMM_WORLD, back, size > 1 ? MPI_SIMILAR : MPI_CONGRUENT);
    compares(MPI_COMM_WORLD, alone, size > 1 ? MPI_UNEQUAL : MPI_CONGRUENT);
    compares(MPI_COMM_SELF, alone, MPI_CONGRUENT);
    OK(MPI_Comm_free(&same));
    OK(MPI_Comm_free(&back));
    OK(MPI_Comm_free(&all));
    OK(MPI_Comm_split(alone, MPI_UNDEFINED, 0, &all));
    CHECK(all == MPI_COMM_NULL);
    OK(MPI_Comm_free(&alone));
    /* All share memory; no other hardware is told apart. */
    MPI_Info info;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "mpi_hw_resource_type", "mpi_shared_memory"));
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_HW_GUIDED, 0, info, &all));
    compares(MPI_COMM_WORLD, all, MPI_CONGRUENT);
    OK(MPI_Comm_free(&all));
    OK(MPI_Info_set(info, "mpi_hw_resource_type", "a made-up thing"));
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_HW_GUIDED, 0, info, &all));
    CHECK(all == MPI_COMM_NULL);
    OK(MPI_Info_free(&info));
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_HW_UNGUIDED, 0, MPI_INFO_NULL, &all));
    CHECK(all == MPI_COMM_NULL);
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_UNDEFINED, 0, MPI_INFO_NULL, &all));
    CHECK(all == MPI_COMM_NULL);
    int some = rank == 0 ? MPI_UNDEFINED : MPI_COMM_TYPE_SHARED;
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, some, 0, MPI_INFO_NULL, &all));
    CHECK((all == MPI_COMM_NULL) == (rank == 0));
    if (rank) {
        OK(MPI_Comm_size(all, &here));
        CHECK(here == size - 1);
        OK(MPI_Comm_free(&all));
    }
}

static void refused(void) {
    MPI_Comm null = MPI_COMM_NULL, world = MPI_COMM_WORLD, fresh, gone;
    MPI_Group outside;
    int n;
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    RAISES(MPI_ERR_COMM, MPI_Comm_free(&null));
    RAISES(MPI_ERR_COMM, MPI_Comm_free(&world));
    RAISES(MPI_ERR_COMM, MPI_Comm_disconnect(&world));
    RAISES(MPI_ERR_COMM, MPI_Comm_rank(null, &n));
    RAISES(MPI_ERR_COMM, MPI_Comm_dup(null, &fresh));
    RAISES(MPI_ERR_COMM, MPI_Comm_compare(MPI_COMM_WORLD, null, &n));
    RAISES(MPI_ERR_ARG, MPI_Comm_split(MPI_COMM_WORLD, -1, 0, &fresh));
    RAISES(MPI_ERR_ARG, MPI_Comm_split_type(MPI_COMM_WORLD, -1, 0, MPI_INFO_NULL, &fresh));
    RAISES(MPI_ERR_GROUP, MPI_Comm_create(MPI_COMM_WORLD, MPI_GROUP_NULL, &fresh));
    if (size > 1) {
        OK(MPI_Comm_group(MPI_COMM_WORLD, &outside));
        RAISES(MPI_ERR_GROUP, MPI_Comm_create(MPI_COMM_SELF, outside, &fresh));
        OK(MPI_Group_free(&outside));
    }
    OK(MPI_Comm_dup(MPI_COMM_SELF, &fresh));
    gone = fresh;
    OK(MPI_Comm_free(&fresh));
    RAISES(MPI_ERR_COMM, MPI_Barrier(gone));
    RAISES(MPI_ERR_COMM, MPI_Comm_free(&gone));
    char name[MPI_MAX_OBJECT_NAME] = "x";
    OK(MPI_Comm_get_name(MPI_COMM_NULL, name, &n));
    CHECK(strcmp(name, "MPI_COMM_NULL") == 0 && n == 13);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL));
}

static void infos(void) {
    MPI_Info info, copy_of;
    int n, flag, len = 64;
    char text[64];
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "one", "1"));
    OK(MPI_Info_set(info, "two", "2"));
    OK(MPI_Info_set(info, "one", "uno"));
    OK(MPI_Info_dup(info, &copy_of));
    OK(MPI_Info_delete(info, "one"));
    OK(MPI_Info_get_nkeys(copy_of, &n));
    CHECK(n == 2);
    OK(MPI_Info_get_nthkey(copy_of, 0, text));
    CHECK(strcmp(text, "one") == 0);
    OK(MPI_Info_get_string(copy_of, "one", &len, text, &flag));
    CHECK(flag && len == 4 && strcmp(text, "uno") == 0);
    OK(MPI_Info_get_string(info, "one", &len, text, &flag));
    CHECK(!flag);
    OK(MPI_Info_free(&info));
    OK(MPI_Info_free(&copy_of));
    CHECK(info == MPI_INFO_NULL);
}

int main(int argc, char **argv) {
    int provided, main_thread;
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
    CHECK(provided == MPI_THREAD_MULTIPLE);
    OK(MPI_Is_thread_main(&main_thread));
    CHECK(main_thread);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    groups();
    communicators();
    early_collectives();
    topologies();
    related();
    refused();
    infos();
    CHECK(MPI_Comm_fromint(MPI_Comm_toint(MPI_COMM_WORLD)) == MPI_COMM_WORLD);
    void *memory;
    OK(MPI_Alloc_mem(1 << 20, MPI_INFO_NULL, &memory));
    memset(memory, 1, 1 << 20);
    OK(MPI_Free_mem(memory));
    OK(MPI_Finalize());
    int flag;
    OK(MPI_Finalized(&flag));
    CHECK(flag);
    return 0;
}
