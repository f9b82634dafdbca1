/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Datatypes: constructors, extents, contents, packing, external32, transfers. */
#include "check.h"
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

static int rank, peer;

enum { BYTES = 4096 };
static unsigned char source[BYTES], target[BYTES], packed[BYTES * 4];

/* Sends through the network what one rank has, receives it packed and scattered, and compares with what MPI_Pack gives. */
static void travels(MPI_Datatype type, int count, size_t before) {
    int size, position = 0;
    OK(MPI_Type_commit(&type));
    OK(MPI_Type_size(type, &size));
    size *= count;
    for (int i = 0; i < BYTES; i++) source[i] = (unsigned char)(i * 31 + 5);
    OK(MPI_Pack(source + before, count, type, packed, sizeof packed, &position, MPI_COMM_WORLD));
    CHECK(position == size);
    int needed;
    OK(MPI_Pack_size(count, type, MPI_COMM_WORLD, &needed));
    CHECK(needed >= size);
    unsigned char *received = calloc(1, size + 1);
    MPI_Request request;
    OK(MPI_Isend(source + before, count, type, peer, 1, MPI_COMM_WORLD, &request));
    MPI_Status status;
    OK(MPI_Recv(received, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &status));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(memcmp(received, packed, size) == 0);
    memset(target, 0, sizeof target);
    OK(MPI_Irecv(target + before, count, type, peer, 2, MPI_COMM_WORLD, &request));
    OK(MPI_Send(packed, size, MPI_PACKED, peer, 2, MPI_COMM_WORLD));
    OK(MPI_Wait(&request, &status));
    int got;
    OK(MPI_Get_count(&status, type, &got));
    CHECK(size == 0 || got == count);
    unsigned char expected[BYTES] = {0};
    position = 0;
    OK(MPI_Unpack(packed, size, &position, expected + before, count, type, MPI_COMM_WORLD));
    CHECK(position == size && memcmp(expected, target, BYTES) == 0);
    free(received);
}

static void extent_is(MPI_Datatype type, MPI_Aint lb, MPI_Aint extent, MPI_Aint true_lb, MPI_Aint true_extent) {
    MPI_Aint a, b;
    OK(MPI_Type_get_extent(type, &a, &b));
    CHECK(a == lb && b == extent);
    OK(MPI_Type_get_true_extent(type, &a, &b));
    CHECK(a == true_lb && b == true_extent);
}

struct mixed { char c; double d; int i[3]; short s; };

static void constructors(void) {
    MPI_Datatype t, u;
    OK(MPI_Type_vector(5, 2, 4, MPI_INT, &t));
    extent_is(t, 0, 72, 0, 72);
    travels(t, 3, 0);
    int integers[8], n[3], combiner;
    MPI_Aint addresses[4];
    MPI_Datatype types[4];
    OK(MPI_Type_get_envelope(t, &n[0], &n[1], &n[2], &combiner));
    CHECK(n[0] == 3 && n[1] == 0 && n[2] == 1 && combiner == MPI_COMBINER_VECTOR);
    OK(MPI_Type_get_contents(t, 3, 0, 1, integers, addresses, types));
    CHECK(integers[0] == 5 && integers[1] == 2 && integers[2] == 4 && types[0] == MPI_INT);
    OK(MPI_Type_create_resized(t, -8, 100, &u));
    extent_is(u, -8, 100, 0, 72);
    travels(u, 4, 8);
    OK(MPI_Type_free(&u));
    OK(MPI_Type_create_hvector(3, 2, 101, t, &u));
    travels(u, 2, 0);
    OK(MPI_Type_get_contents(u, 2, 1, 1, integers, addresses, types));
    CHECK(addresses[0] == 101);
    OK(MPI_Type_free(&types[0]));
    OK(MPI_Type_free(&u));
    OK(MPI_Type_free(&t));
    int lengths[4] = {2, 0, 1, 3}, displs[4] = {7, 1, 0, 20};
    OK(MPI_Type_indexed(4, lengths, displs, MPI_SHORT, &t));
    extent_is(t, 0, 46, 0, 46);
    travels(t, 5, 0);
    OK(MPI_Type_free(&t));
    MPI_Aint places[4] = {64, 5, 0, 33};
    OK(MPI_Type_create_hindexed(4, lengths, places, MPI_FLOAT, &t));
    travels(t, 3, 0);
    OK(MPI_Type_free(&t));
    OK(MPI_Type_create_indexed_block(4, 2, displs, MPI_DOUBLE, &t));
    travels(t, 2, 0);
    OK(MPI_Type_dup(t, &u));
    OK(MPI_Type_free(&t));
    travels(u, 2, 0);
    OK(MPI_Type_free(&u));
    OK(MPI_Type_create_hindexed_block(4, 1, places, MPI_INT, &t));
    travels(t, 2, 0);
    OK(MPI_Type_free(&t));
    int blocks[4] = {1, 1, 3, 1};
    MPI_Aint at[4] = {offsetof(struct mixed, c), offsetof(struct mixed, d), offsetof(struct mixed, i), offsetof(struct mixed, s)};
    MPI_Datatype parts[4] = {MPI_CHAR, MPI_DOUBLE, MPI_INT, MPI_SHORT};
    OK(MPI_Type_create_struct(4, blocks, at, parts, &t));
    extent_is(t, 0, sizeof(struct mixed), 0, offsetof(struct mixed, s) + sizeof(short));
    travels(t, 7, 0);
    MPI_Status status;
    memset(&status, 0, sizeof status);
    int count;
    OK(MPI_Status_set_elements(&status, t, 8));
    OK(MPI_Get_elements(&status, t, &count));
    CHECK(count == 8);
    OK(MPI_Get_count(&status, t, &count));
    CHECK(count == MPI_UNDEFINED);
    char name[MPI_MAX_OBJECT_NAME];
    OK(MPI_Type_set_name(t, "mixed"));
    OK(MPI_Type_get_name(t, name, &count));
    CHECK(strcmp(name, "mixed") == 0);
    OK(MPI_Type_get_name(MPI_DOUBLE_INT, name, &count));
    CHECK(strcmp(name, "MPI_DOUBLE_INT") == 0);
    OK(MPI_Type_free(&t));
    CHECK(t == MPI_DATATYPE_NULL);
    extent_is(MPI_DOUBLE_INT, 0, 16, 0, 12);
    extent_is(MPI_SHORT_INT, 0, 8, 0, 8);
    travels(MPI_SHORT_INT, 9, 0);
    travels(MPI_LONG_DOUBLE_INT, 4, 0);
}

/* Each element of the array is in the part of exactly one process. */
static void arrays(void) {
    int sizes[3] = {5, 7, 4}, sub[3] = {2, 3, 2}, start[3] = {1, 2, 1};
    for (int order = MPI_ORDER_C; order != 0; order = order == MPI_ORDER_C ? MPI_ORDER_FORTRAN : 0) {
        MPI_Datatype t;
        OK(MPI_Type_create_subarray(3, sizes, sub, start, order, MPI_INT, &t));
        OK(MPI_Type_commit(&t));
        extent_is(t, 0, 140 * 4, order == MPI_ORDER_C ? (1 * 28 + 2 * 4 + 1) * 4 : (1 + 2 * 5 + 1 * 35) * 4,
                  order == MPI_ORDER_C ? (28 + 2 * 4 + 2) * 4 : (2 + 2 * 5 + 35) * 4);
        int all[140], got[12], position = 0;
        for (int i = 0; i < 140; i++) all[i] = i;
        OK(MPI_Pack(all, 1, t, got, sizeof got, &position, MPI_COMM_WORLD));
        int next = 0;
        for (int a = 0; a < 2; a++)
            for (int b = 0; b < 3; b++)
                for (int d = 0; d < 2; d++) {
                    int place = order == MPI_ORDER_C ? (1 + a) * 28 + (2 + b) * 4 + 1 + d
                                                     : (1 + d) + (2 + b) * 5 + (1 + a) * 35;
                    CHECK(got[next++] == place);
                }
        OK(MPI_Type_free(&t));
    }
    int gsizes[2] = {11, 9}, psizes[2] = {2, 3};
    int kinds[][2] = {{MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC}, {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_BLOCK}};
    int arguments[][2] = {{MPI_DISTRIBUTE_DFLT_DARG, 2}, {3, 4}};
    for (int k = 0; k < 2; k++) {
        int seen[99] = {0}, total = 0;
        for (int process = 0; process < 6; process++) {
            MPI_Datatype t;
            OK(MPI_Type_create_darray(6, process, 2, gsizes, kinds[k], arguments[k], psizes, MPI_ORDER_C, MPI_INT, &t));
            OK(MPI_Type_commit(&t));
            int all[99], got[99], position = 0, size;
            for (int i = 0; i < 99; i++) all[i] = i;
            OK(MPI_Type_size(t, &size));
            OK(MPI_Pack(all, 1, t, got, sizeof got, &position, MPI_COMM_WORLD));
            for (int i = 0; i < size / 4; i++) {
                int row = got[i] / 9, column = got[i] % 9;
                int owner_row = k == 0 ? row / 6 : row / 3 % 2, owner_column = k == 0 ? column / 2 % 3 : column / 4;
                CHECK(owner_row * 3 + owner_column == process);
                seen[got[i]]++;
                total++;
            }
            MPI_Aint lb, extent;
            OK(MPI_Type_get_extent(t, &lb, &extent));
            CHECK(lb == 0 && extent == 99 * 4);
            OK(MPI_Type_free(&t));
        }
        CHECK(total == 99);
        for (int i = 0; i < 99; i++) CHECK(seen[i] == 1);
    }
}

static void external(void) {
    int values[2] = {0x01020304, -2}, back[2];
    unsigned char bytes[64];
    MPI_Aint position = 0, size;
    OK(MPI_Pack_external("external32", values, 2, MPI_INT, bytes, sizeof bytes, &position));
    CHECK(position == 8 && bytes[0] == 1 && bytes[3] == 4 && bytes[4] == 0xff && bytes[7] == 0xfe);
    long big = -77, again = 0;
    OK(MPI_Pack_external("external32", &big, 1, MPI_LONG, bytes, sizeof bytes, &position));
    CHECK(position == 12);
    OK(MPI_Pack_external_size("external32", 1, MPI_LONG_DOUBLE, &size));
    CHECK(size == 16);
    long double real = -1.0L / 3, copy = 0;
    OK(MPI_Pack_external("external32", &real, 1, MPI_LONG_DOUBLE, bytes, sizeof bytes, &position));
    position = 0;
    OK(MPI_Unpack_external("external32", bytes, sizeof bytes, &position, back, 2, MPI_INT));
    CHECK(memcmp(values, back, sizeof back) == 0);
    OK(MPI_Unpack_external("external32", bytes, sizeof bytes, &position, &again, 1, MPI_LONG));
    CHECK(again == big);
    OK(MPI_Unpack_external("external32", bytes, sizeof bytes, &position, &copy, 1, MPI_LONG_DOUBLE));
    CHECK(copy == real);
}

static void large_counts(void) {
    MPI_Datatype t;
    MPI_Count sizes, n[4];
    int combiner;
    OK(MPI_Type_contiguous_c((MPI_Count)3 << 31, MPI_INT, &t));
    OK(MPI_Type_size_c(t, &sizes));
    CHECK(sizes == ((MPI_Count)3 << 31) * 4);
    int small;
    OK(MPI_Type_size(t, &small));
    CHECK(small == MPI_UNDEFINED);
    OK(MPI_Type_get_envelope_c(t, &n[0], &n[1], &n[2], &n[3], &combiner));
    CHECK(n[0] == 0 && n[1] == 0 && n[2] == 1 && n[3] == 1 && combiner == MPI_COMBINER_CONTIGUOUS);
    OK(MPI_Type_free(&t));
}

/* Whatever reaches beyond 64 bits is refused, not taken for something shorter. */
#define BEYOND(call) RAISES(MPI_ERR_COUNT, call)

static void beyond_64_bits(void) {
    const MPI_Count far = (MPI_Count)1 << 62;
    MPI_Datatype t = MPI_DATATYPE_NULL, wide, low;
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));

    int cube[3] = {INT_MAX, INT_MAX, INT_MAX}, one[3] = {1, 1, 1}, zero[3] = {0, 0, 0}, end[3] = {INT_MAX - 1, 0, 0};
    BEYOND(MPI_Type_create_subarray(3, cube, one, zero, MPI_ORDER_C, MPI_INT, &t));
    BEYOND(MPI_Type_create_subarray(3, cube, one, end, MPI_ORDER_C, MPI_CHAR, &t));
    int block[3] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE};
    int usual[3] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG}, grid[3] = {2, 2, 1};
    for (int process = 0; process < 4; process++)
        BEYOND(MPI_Type_create_darray(4, process, 3, cube, block, usual, grid, MPI_ORDER_FORTRAN, MPI_INT, &t));
    MPI_Count longest[1] = {INT64_MAX};
    int three[1] = {3};
    OK(MPI_Type_create_darray_c(3, 2, 1, longest, block, usual, three, MPI_ORDER_C, MPI_CHAR, &t));
    extent_is(t, 0, INT64_MAX, INT64_MAX / 3 * 2 + 2, INT64_MAX / 3 - 1);
    OK(MPI_Type_free(&t));

    BEYOND(MPI_Type_create_hvector(5, 1, far, MPI_CHAR, &t));
    BEYOND(MPI_Type_create_hvector(5, 1, -far, MPI_CHAR, &t));
    BEYOND(MPI_Type_vector_c((MPI_Count)1 << 40, 1, (MPI_Count)1 << 40, MPI_CHAR, &t));
    BEYOND(MPI_Type_vector_c(2, 1, far, MPI_INT, &t));
    OK(MPI_Type_vector_c(1, 1, far, MPI_INT, &t));
    extent_is(t, 0, 4, 0, 4);
    OK(MPI_Type_free(&t));
    OK(MPI_Type_create_resized(MPI_CHAR, 0, far, &wide));
    BEYOND(MPI_Type_contiguous(3, wide, &t));
    OK(MPI_Type_contiguous(1, wide, &t));
    extent_is(t, 0, far, 0, 1);
    OK(MPI_Type_free(&t));
    BEYOND(MPI_Type_create_resized(MPI_CHAR, 2, INT64_MAX, &t));
    OK(MPI_Type_create_resized(MPI_CHAR, INT64_MIN, INT64_MAX, &low));
    BEYOND(MPI_Type_create_hvector(2, 1, -1, low, &t));

    int ones[2] = {1, 1}, at[2] = {0, 3};
    MPI_Aint ends[2] = {INT64_MIN, INT64_MAX - 8}, last[1] = {INT64_MAX};
    MPI_Datatype two[2] = {MPI_INT, MPI_INT};
    BEYOND(MPI_Type_create_hindexed(2, ones, ends, MPI_CHAR, &t));
    BEYOND(MPI_Type_create_hindexed_block(1, 2, last, MPI_CHAR, &t));
    BEYOND(MPI_Type_create_hindexed_block(1, 1, last, MPI_INT, &t));
    BEYOND(MPI_Type_create_struct(2, ones, ends, two, &t));
    BEYOND(MPI_Type_indexed(2, ones, at, wide, &t));
    BEYOND(MPI_Type_create_indexed_block(2, 1, at, wide, &t));
    BEYOND(MPI_Type_contiguous_c(INT64_MAX, MPI_INT, &t));

    /* A valid datatype, so often that its instances are beyond. The fifth would be where the first is. */
    char buffer[8] = "abcdefg";
    int position = 0;
    OK(MPI_Type_commit(&wide));
    BEYOND(MPI_Pack(buffer, 5, wide, packed, sizeof packed, &position, MPI_COMM_SELF));
    CHECK(position == 0);
    BEYOND(MPI_Send(buffer, 5, wide, peer, 1, MPI_COMM_WORLD));
    BEYOND(MPI_Bcast(buffer, 5, wide, 0, MPI_COMM_SELF));
    /* More scattered bytes than there is memory to pack them. */
    OK(MPI_Type_vector_c((MPI_Count)1 << 52, 1, 2, MPI_CHAR, &t));
    OK(MPI_Type_commit(&t));
    RAISES(MPI_ERR_NO_MEM, MPI_Send(buffer, 1, t, peer, 1, MPI_COMM_WORLD));
    RAISES(MPI_ERR_NO_MEM, MPI_Recv(buffer, 1, t, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Type_free(&t));
    OK(MPI_Type_free(&wide));
    OK(MPI_Type_free(&low));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
}

/* Long runs travel as they are, by a list of them. */
static void long_runs(void) {
    enum { N = 256, RUN = 1024 };
    MPI_Datatype t;
    int *out = malloc(2 * N * RUN * sizeof *out), *in = calloc(2 * N * RUN, sizeof *in);
    for (int i = 0; i < 2 * N * RUN; i++) out[i] = i ^ rank;
    OK(MPI_Type_vector(N, RUN, 2 * RUN, MPI_INT, &t));
    OK(MPI_Type_commit(&t));
    OK(MPI_Sendrecv(out, 1, t, peer, 1, in, 1, t, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    for (int i = 0; i < 2 * N * RUN; i++) CHECK(in[i] == (i / RUN % 2 ? 0 : i ^ peer));
    OK(MPI_Type_free(&t));
    free(out);
    free(in);
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    int size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    peer = size - 1 - rank;
    constructors();
    arrays();
    external();
    large_counts();
    beyond_64_bits();
    long_runs();
    OK(MPI_Finalize());
    return 0;
}
