/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Datatypes: bounds with strides and displacements of either sign, blocks of nothing, and what
   each type tells of its making. */
#include "check.h"
#include <stddef.h>

static void bounds_are(MPI_Datatype type, int size, MPI_Aint lb, MPI_Aint extent, MPI_Aint true_lb,
    MPI_Aint true_extent) {
    MPI_Aint a, b;
    MPI_Count bytes, c, d;
    OK(MPI_Type_size_x(type, &bytes));
    CHECK(bytes == size);
    OK(MPI_Type_get_extent(type, &a, &b));
    CHECK(a == lb && b == extent);
    OK(MPI_Type_get_extent_x(type, &c, &d));
    CHECK(c == lb && d == extent);
    OK(MPI_Type_get_true_extent(type, &a, &b));
    CHECK(a == true_lb && b == true_extent);
    OK(MPI_Type_get_true_extent_c(type, &c, &d));
    CHECK(c == true_lb && d == true_extent);
}

/* The type names these integers of a buffer, counted from its middle, in this order. */
static void names(MPI_Datatype type, int n, const int *places) {
    int buffer[64], packed[64], position = 0;
    for (int i = 0; i < 64; i++) buffer[i] = i - 32;
    MPI_Datatype copy;
    OK(MPI_Type_dup(type, &copy));
    OK(MPI_Type_commit(&copy));
    OK(MPI_Pack(buffer + 32, 1, copy, packed, sizeof packed, &position, MPI_COMM_SELF));
    CHECK(position == 4 * n);
    for (int i = 0; i < n; i++) CHECK(packed[i] == places[i]);
    OK(MPI_Type_free(&copy));
}

static void bounds(void) {
    MPI_Datatype type, part, outer;
    OK(MPI_Type_vector(3, 2, -4, MPI_INT, &type));
    bounds_are(type, 24, -32, 40, -32, 40);
    names(type, 6, (int[]){0, 1, -4, -3, -8, -7});
    OK(MPI_Type_contiguous(2, type, &outer));
    bounds_are(outer, 48, -32, 80, -32, 80);
    OK(MPI_Type_free(&outer));
    OK(MPI_Type_free(&type));
    OK(MPI_Type_create_hvector(2, 1, -12, MPI_INT, &type));
    bounds_are(type, 8, -12, 16, -12, 16);
    OK(MPI_Type_free(&type));
    OK(MPI_Type_indexed(3, (int[]){2, 0, 1}, (int[]){3, -100, -2}, MPI_INT, &type));
    bounds_are(type, 12, -8, 28, -8, 28);
    names(type, 3, (int[]){3, 4, -2});
    OK(MPI_Type_free(&type));
    OK(MPI_Type_create_hindexed_block(3, 1, (MPI_Aint[]){8, -8, 0}, MPI_INT, &type));
    bounds_are(type, 12, -8, 20, -8, 20);
    names(type, 3, (int[]){2, -2, 0});
    OK(MPI_Type_free(&type));
    /* Blocks of nothing, and no blocks at all. */
    OK(MPI_Type_vector(4, 0, 7, MPI_INT, &type));
    bounds_are(type, 0, 0, 0, 0, 0);
    OK(MPI_Type_contiguous(3, type, &outer));
    bounds_are(outer, 0, 0, 0, 0, 0);
    OK(MPI_Type_free(&outer));
    OK(MPI_Type_free(&type));
    OK(MPI_Type_create_struct(0, NULL, NULL, NULL, &type));
    bounds_are(type, 0, 0, 0, 0, 0);
    OK(MPI_Type_free(&type));
    MPI_Datatype some[3] = {MPI_DOUBLE, MPI_INT, MPI_CHAR};
    OK(MPI_Type_create_struct(3, (int[]){0, 1, 1}, (MPI_Aint[]){-80, 8, 12}, some, &type));
    bounds_are(type, 5, 8, 8, 8, 5);
    OK(MPI_Type_free(&type));
    OK(MPI_Type_create_indexed_block(0, 3, NULL, MPI_INT, &type));
    bounds_are(type, 0, 0, 0, 0, 0);
    OK(MPI_Type_free(&type));
    /* Bounds that were set: wider, narrower, below zero. */
    OK(MPI_Type_create_resized(MPI_INT, -4, 16, &part));
    bounds_are(part, 4, -4, 16, 0, 4);
    OK(MPI_Type_contiguous(3, part, &type));
    bounds_are(type, 12, -4, 48, 0, 36);
    names(type, 3, (int[]){0, 4, 8});
    OK(MPI_Type_free(&type));
    OK(MPI_Type_create_resized(part, 0, -8, &type));
    bounds_are(type, 4, 0, -8, 0, 4);
    OK(MPI_Type_contiguous(3, type, &outer));
    bounds_are(outer, 12, -16, 8, -16, 20);
    names(outer, 3, (int[]){0, -2, -4});
    OK(MPI_Type_free(&outer));
    OK(MPI_Type_free(&type));
    MPI_Datatype both[2] = {part, MPI_DOUBLE};
    OK(MPI_Type_create_struct(2, (int[]){1, 1}, (MPI_Aint[]){0, 40}, both, &type));
    bounds_are(type, 12, -4, 16, 0, 48);
    OK(MPI_Type_free(&type));
    OK(MPI_Type_create_resized(part, 0, 0, &type));
    bounds_are(type, 4, 0, 0, 0, 4);
    OK(MPI_Type_contiguous(2, type, &outer));
    bounds_are(outer, 8, 0, 0, 0, 4);
    names(outer, 2, (int[]){0, 0});
    OK(MPI_Type_free(&outer));
    OK(MPI_Type_free(&type));
    OK(MPI_Type_free(&part));
    /* Places in memory itself. */
    int a = 5, b = 7, back[2], position = 0;
    MPI_Aint at[2];
    OK(MPI_Get_address(&a, &at[0]));
    OK(MPI_Get_address(&b, &at[1]));
    OK(MPI_Type_create_hindexed(2, (int[]){1, 1}, at, MPI_INT, &type));
    OK(MPI_Type_commit(&type));
    OK(MPI_Pack(MPI_BOTTOM, 1, type, back, sizeof back, &position, MPI_COMM_SELF));
    CHECK(back[0] == 5 && back[1] == 7);
    int got[2];
    OK(MPI_Sendrecv(MPI_BOTTOM, 1, type, 0, 1, got, 2, MPI_INT, 0, 1, MPI_COMM_SELF,
        MPI_STATUS_IGNORE));
    CHECK(got[0] == 5 && got[1] == 7);
    back[0] = 15, back[1] = 17;
    OK(MPI_Bcast(MPI_BOTTOM, 1, type, 0, MPI_COMM_SELF));
    OK(MPI_Sendrecv(back, 2, MPI_INT, 0, 1, MPI_BOTTOM, 1, type, 0, 1, MPI_COMM_SELF,
        MPI_STATUS_IGNORE));
    CHECK(a == 15 && b == 17);
    OK(MPI_Type_free(&type));
}

/* A type tells how it was made, in the plain form and with large counts; then it is freed. */
static void made(MPI_Datatype type, int combiner, int n_integers, const int *integers,
    int n_addresses,
                 const MPI_Aint *addresses, int n_types, const MPI_Datatype *types) {
    int n[4], i[32];
    MPI_Aint a[8];
    MPI_Datatype t[8];
    MPI_Count large[4];
    OK(MPI_Type_get_envelope(type, &n[0], &n[1], &n[2], &n[3]));
    CHECK(n[0] == n_integers && n[1] == n_addresses && n[2] == n_types && n[3] == combiner);
    OK(MPI_Type_get_envelope_c(type, &large[0], &large[1], &large[2], &large[3], &n[3]));
    CHECK(large[0] == n_integers && large[1] == n_addresses && large[2] == 0
        && large[3] == n_types);
    OK(MPI_Type_get_contents(type, 32, 8, 8, i, a, t));
    for (int k = 0; k < n_integers; k++) CHECK(i[k] == integers[k]);
    for (int k = 0; k < n_addresses; k++) CHECK(a[k] == addresses[k]);
    for (int k = 0; k < n_types; k++) CHECK(t[k] == types[k]);
    if (n_integers > 0) RAISES(MPI_ERR_ARG, MPI_Type_get_contents(type, n_integers - 1, 8, 8, i, a,
        t));
    if (n_types > 0) RAISES(MPI_ERR_ARG, MPI_Type_get_contents(type, 32, 8, n_types - 1, i, a, t));
    if (combiner != MPI_COMBINER_F90_REAL) OK(MPI_Type_free(&type));
}

#define LIST(type, ...) sizeof((type[]){__VA_ARGS__}) / sizeof(type), (type[]){__VA_ARGS__}
#define NONE 0, NULL

static void contents(void) {
    MPI_Datatype t, of = MPI_SHORT;
    int lengths[2] = {1, 2}, places[2] = {4, -5};
    MPI_Aint far[2] = {-16, 40};
    OK(MPI_Type_dup(of, &t));
    made(t, MPI_COMBINER_DUP, NONE, NONE, 1, &of);
    OK(MPI_Type_contiguous(3, of, &t));
    made(t, MPI_COMBINER_CONTIGUOUS, LIST(int, 3), NONE, 1, &of);
    OK(MPI_Type_vector(2, 3, -4, of, &t));
    made(t, MPI_COMBINER_VECTOR, LIST(int, 2, 3, -4), NONE, 1, &of);
    OK(MPI_Type_create_hvector(2, 3, -40, of, &t));
    made(t, MPI_COMBINER_HVECTOR, LIST(int, 2, 3), LIST(MPI_Aint, -40), 1, &of);
    OK(MPI_Type_indexed(2, lengths, places, of, &t));
    made(t, MPI_COMBINER_INDEXED, LIST(int, 2, 1, 2, 4, -5), NONE, 1, &of);
    OK(MPI_Type_create_hindexed(2, lengths, far, of, &t));
    made(t, MPI_COMBINER_HINDEXED, LIST(int, 2, 1, 2), LIST(MPI_Aint, -16, 40), 1, &of);
    OK(MPI_Type_create_indexed_block(2, 3, places, of, &t));
    made(t, MPI_COMBINER_INDEXED_BLOCK, LIST(int, 2, 3, 4, -5), NONE, 1, &of);
    OK(MPI_Type_create_hindexed_block(2, 3, far, of, &t));
    made(t, MPI_COMBINER_HINDEXED_BLOCK, LIST(int, 2, 3), LIST(MPI_Aint, -16, 40), 1, &of);
    OK(MPI_Type_create_struct(2, lengths, far, (MPI_Datatype[]){MPI_INT, MPI_CHAR}, &t));
    made(t, MPI_COMBINER_STRUCT, LIST(int, 2, 1, 2), LIST(MPI_Aint, -16, 40), LIST(MPI_Datatype,
        MPI_INT, MPI_CHAR));
    OK(MPI_Type_create_subarray(2, (int[]){4, 5}, (int[]){2, 3}, (int[]){1, 0}, MPI_ORDER_FORTRAN,
        of, &t));
    made(t, MPI_COMBINER_SUBARRAY, LIST(int, 2, 4, 5, 2, 3, 1, 0, MPI_ORDER_FORTRAN), NONE, 1, &of);
    int kinds[2] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_NONE},
        arguments[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG};
    OK(MPI_Type_create_darray(3, 1, 2, (int[]){7, 5}, kinds, arguments, (int[]){3, 1}, MPI_ORDER_C,
        of, &t));
    made(t, MPI_COMBINER_DARRAY,
         LIST(int, 3, 1, 2, 7, 5, MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_NONE,
             MPI_DISTRIBUTE_DFLT_DARG,
              MPI_DISTRIBUTE_DFLT_DARG, 3, 1, MPI_ORDER_C),
         NONE, 1, &of);
    OK(MPI_Type_create_resized(of, -2, 10, &t));
    made(t, MPI_COMBINER_RESIZED, NONE, LIST(MPI_Aint, -2, 10), 1, &of);
    OK(MPI_Type_create_f90_real(6, 30, &t));
    made(t, MPI_COMBINER_F90_REAL, LIST(int, 6, 30), NONE, NONE);
    int n[4];
    OK(MPI_Type_get_envelope(MPI_INT, &n[0], &n[1], &n[2], &n[3]));
    CHECK(n[0] == 0 && n[1] == 0 && n[2] == 0 && n[3] == MPI_COMBINER_NAMED);
    RAISES(MPI_ERR_TYPE, MPI_Type_get_contents(MPI_INT, 0, 0, 0, NULL, NULL, NULL));
    RAISES(MPI_ERR_TYPE, MPI_Type_get_envelope(MPI_DATATYPE_NULL, &n[0], &n[1], &n[2], &n[3]));
}

static void large_contents(void) {
    MPI_Datatype t, back;
    MPI_Count n[4], counts[8];
    int combiner, integers[4];
    OK(MPI_Type_create_subarray_c(1, (MPI_Count[]){9}, (MPI_Count[]){4}, (MPI_Count[]){2},
        MPI_ORDER_C, MPI_INT, &t));
    OK(MPI_Type_get_envelope_c(t, &n[0], &n[1], &n[2], &n[3], &combiner));
    CHECK(n[0] == 2 && n[1] == 0 && n[2] == 3 && n[3] == 1 && combiner == MPI_COMBINER_SUBARRAY);
    OK(MPI_Type_get_contents_c(t, 2, 0, 3, 1, integers, NULL, counts, &back));
    CHECK(integers[0] == 1 && integers[1] == MPI_ORDER_C && counts[0] == 9 && counts[1] == 4
        && counts[2] == 2);
    CHECK(back == MPI_INT);
    int narrow[4];
    RAISES(MPI_ERR_TYPE, MPI_Type_get_envelope(t, &narrow[0], &narrow[1], &narrow[2], &narrow[3]));
    OK(MPI_Type_free(&t));
    OK(MPI_Type_create_resized_c(MPI_INT, -4, 12, &t));
    OK(MPI_Type_get_envelope_c(t, &n[0], &n[1], &n[2], &n[3], &combiner));
    CHECK(n[0] == 0 && n[1] == 0 && n[2] == 2 && n[3] == 1 && combiner == MPI_COMBINER_RESIZED);
    OK(MPI_Type_free(&t));
}

static void by_size(void) {
    struct { int class, size; } all[] = {
        {MPI_TYPECLASS_INTEGER, 1}, {MPI_TYPECLASS_INTEGER, 2}, {MPI_TYPECLASS_INTEGER, 4},
            {MPI_TYPECLASS_INTEGER, 8},
        {MPI_TYPECLASS_REAL, 4},    {MPI_TYPECLASS_REAL, 8},    {MPI_TYPECLASS_COMPLEX, 8},
            {MPI_TYPECLASS_COMPLEX, 16},
    };
    MPI_Datatype type;
    int size;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        OK(MPI_Type_match_size(all[i].class, all[i].size, &type));
        OK(MPI_Type_size(type, &size));
        CHECK(size == all[i].size);
        RAISES(MPI_ERR_TYPE, MPI_Type_free(&type));
    }
    RAISES(MPI_ERR_ARG, MPI_Type_match_size(MPI_TYPECLASS_REAL, 5, &type));
    RAISES(MPI_ERR_ARG, MPI_Type_match_size(MPI_TYPECLASS_INTEGER, -4, &type));
    RAISES(MPI_ERR_ARG, MPI_Type_match_size(MPI_TYPECLASS_INTEGER, 260, &type));
    RAISES(MPI_ERR_ARG, MPI_Type_match_size(-1, 4, &type));
}

static void refused(void) {
    MPI_Datatype type = MPI_DATATYPE_NULL, fresh;
    int sizes[2] = {4, 4}, parts[2] = {2, 2}, starts[2] = {3, 0}, kinds[2] = {MPI_DISTRIBUTE_BLOCK,
        MPI_DISTRIBUTE_BLOCK},
        arguments[2] = {1, 1}, grid[2] = {2, 2};
    RAISES(MPI_ERR_COUNT, MPI_Type_contiguous(-1, MPI_INT, &fresh));
    RAISES(MPI_ERR_COUNT, MPI_Type_vector(2, -1, 1, MPI_INT, &fresh));
    RAISES(MPI_ERR_TYPE, MPI_Type_contiguous(1, MPI_DATATYPE_NULL, &fresh));
    RAISES(MPI_ERR_TYPE, MPI_Type_create_struct(1, (int[]){1}, (MPI_Aint[]){0}, &type, &fresh));
    RAISES(MPI_ERR_TYPE, MPI_Type_commit(&type));
    RAISES(MPI_ERR_TYPE, MPI_Type_free(&type));
    RAISES(MPI_ERR_ARG, MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT,
        &fresh));
    starts[0] = 0;
    RAISES(MPI_ERR_ARG, MPI_Type_create_subarray(0, sizes, parts, starts, MPI_ORDER_C, MPI_INT,
        &fresh));
    RAISES(MPI_ERR_ARG, MPI_Type_create_subarray(2, sizes, parts, starts, 12345, MPI_INT, &fresh));
    RAISES(MPI_ERR_ARG, MPI_Type_create_darray(4, 0, 2, sizes, kinds, arguments, grid, MPI_ORDER_C,
        MPI_INT, &fresh));
    RAISES(MPI_ERR_ARG, MPI_Type_create_darray(4, 4, 2, sizes, kinds, arguments, grid, MPI_ORDER_C,
        MPI_INT, &fresh));
    RAISES(MPI_ERR_ARG, MPI_Type_create_darray(5, 0, 2, sizes, kinds, arguments, grid, MPI_ORDER_C,
        MPI_INT, &fresh));
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    bounds();
    contents();
    large_contents();
    by_size();
    refused();
    OK(MPI_Finalize());
    return 0;
}
