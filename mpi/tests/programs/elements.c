/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counts and elements of what was received: pairs, types made of them, cut instances, limits. */
#include "check.h"
#include <limits.h>
#include <stddef.h>

/* A status of so many bytes. */
static MPI_Status bytes(int n) {
    MPI_Status status;
    memset(&status, 0, sizeof status);
    OK(MPI_Status_set_elements(&status, MPI_BYTE, n));
    return status;
}

/* So many bytes hold so many instances and elements of a type, in every form of the question. */
static void holds(MPI_Datatype type, int n, int instances, int elements) {
    MPI_Status status = bytes(n);
    int count;
    MPI_Count large;
    OK(MPI_Get_count(&status, type, &count));
    CHECK(count == instances);
    OK(MPI_Get_count_c(&status, type, &large));
    CHECK(large == instances);
    OK(MPI_Get_elements(&status, type, &count));
    CHECK(count == elements);
    OK(MPI_Get_elements_x(&status, type, &large));
    CHECK(large == elements);
    OK(MPI_Get_elements_c(&status, type, &large));
    CHECK(large == elements);
    if (elements == MPI_UNDEFINED) return;
    /* Setting so many elements gives the same status, unless nothing tells them apart. */
    MPI_Status again = bytes(0);
    OK(MPI_Status_set_elements_x(&again, type, elements));
    OK(MPI_Get_count(&again, MPI_BYTE, &count));
    CHECK(count == n);
}

static void pairs(void) {
    struct { MPI_Datatype type; int first, second; } all[] = {
        {MPI_FLOAT_INT, 4, 4},   {MPI_DOUBLE_INT, 8, 4}, {MPI_LONG_INT, sizeof(long), 4},
        {MPI_2INT, 4, 4},        {MPI_SHORT_INT, 2, 4},  {MPI_LONG_DOUBLE_INT, sizeof(long double),
            4},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int first = all[i].first, whole = first + all[i].second;
        MPI_Datatype type = all[i].type;
        holds(type, 0, 0, 0);
        holds(type, whole, 1, 2);
        holds(type, 3 * whole, 3, 6);
        holds(type, first, MPI_UNDEFINED, 1);
        holds(type, 2 * whole + first, MPI_UNDEFINED, 5);
        holds(type, whole + 1, MPI_UNDEFINED, MPI_UNDEFINED);
        holds(type, whole - 1, MPI_UNDEFINED, MPI_UNDEFINED);
        MPI_Datatype twin;
        OK(MPI_Type_dup(type, &twin));
        holds(twin, whole + first, MPI_UNDEFINED, 3);
        OK(MPI_Type_free(&twin));
    }
}

static void derived(void) {
    MPI_Datatype type, outer, empty;
    int blocks[3] = {1, 2, 0};
    MPI_Aint at[3] = {0, 16, 40};
    MPI_Datatype parts[3] = {MPI_DOUBLE_INT, MPI_SHORT, MPI_CHAR};
    OK(MPI_Type_create_struct(3, blocks, at, parts, &type));
    /* 8 and 4, 2 and 2. */
    holds(type, 16, 1, 4);
    holds(type, 8, MPI_UNDEFINED, 1);
    holds(type, 12, MPI_UNDEFINED, 2);
    holds(type, 14, MPI_UNDEFINED, 3);
    holds(type, 13, MPI_UNDEFINED, MPI_UNDEFINED);
    holds(type, 24, MPI_UNDEFINED, 5);
    holds(type, 160, 10, 40);
    OK(MPI_Type_contiguous(5, type, &outer));
    holds(outer, 80, 1, 20);
    holds(outer, 96, MPI_UNDEFINED, 24);
    holds(outer, 94, MPI_UNDEFINED, 23);
    OK(MPI_Type_free(&outer));
    OK(MPI_Type_free(&type));
    OK(MPI_Type_vector(3, 2, 4, MPI_SHORT_INT, &type));
    holds(type, 36, 1, 12);
    holds(type, 2, MPI_UNDEFINED, 1);
    holds(type, 20, MPI_UNDEFINED, 7);
    holds(type, 22, MPI_UNDEFINED, MPI_UNDEFINED);
    OK(MPI_Type_free(&type));
    /* A type of no bytes. */
    OK(MPI_Type_contiguous(0, MPI_DOUBLE_INT, &empty));
    holds(empty, 0, 0, 0);
    holds(empty, 4, MPI_UNDEFINED, MPI_UNDEFINED);
    OK(MPI_Type_free(&empty));
    holds(MPI_C_DOUBLE_COMPLEX, 32, 2, 2);
    holds(MPI_C_DOUBLE_COMPLEX, 8, MPI_UNDEFINED, MPI_UNDEFINED);
}

struct record { double a; int b; double c; };

/* What really arrives. */
static void received(int rank, int peer) {
    struct record out[2] = {{1, rank, 3}, {4, 5, 6}}, in[3];
    MPI_Datatype type;
    MPI_Status status;
    int blocks[2] = {1, 1}, count, elements;
    MPI_Aint at[2] = {offsetof(struct record, a), offsetof(struct record, c)};
    MPI_Datatype parts[2] = {MPI_DOUBLE_INT, MPI_DOUBLE};
    OK(MPI_Type_create_struct(2, blocks, at, parts, &type));
    OK(MPI_Type_commit(&type));
    memset(in, 0, sizeof in);
    OK(MPI_Sendrecv(out, 2, type, peer, 3, in, 3, type, peer, 3, MPI_COMM_WORLD, &status));
    OK(MPI_Get_count(&status, type, &count));
    OK(MPI_Get_elements(&status, type, &elements));
    CHECK(count == 2 && elements == 6 && in[0].b == peer && in[1].c == 6);
    /* One and a third. */
    double five[2] = {7, 8};
    char bytes_of[28];
    memcpy(bytes_of, five, 8);
    memcpy(bytes_of + 8, &rank, 4);
    memcpy(bytes_of + 12, five, 16);
    memset(in, 0, sizeof in);
    OK(MPI_Sendrecv(bytes_of, 28, MPI_PACKED, peer, 4, in, 3, type, peer, 4, MPI_COMM_WORLD,
        &status));
    OK(MPI_Get_count(&status, type, &count));
    OK(MPI_Get_elements(&status, type, &elements));
    CHECK(count == MPI_UNDEFINED && elements == 4 && in[0].c == 7 && in[1].a == 8 && in[1].b == 0);
    OK(MPI_Type_free(&type));
    /* Nothing from nobody. */
    OK(MPI_Recv(in, 3, MPI_DOUBLE_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status));
    OK(MPI_Get_elements(&status, MPI_DOUBLE_INT, &elements));
    CHECK(elements == 0 && status.MPI_SOURCE == MPI_PROC_NULL);
}

static void limits(void) {
    MPI_Status status = bytes(0);
    MPI_Count large = (MPI_Count)INT_MAX + 7;
    MPI_Datatype type;
    int count, there;
    OK(MPI_Status_set_elements_x(&status, MPI_2INT, large));
    OK(MPI_Get_elements(&status, MPI_2INT, &count));
    CHECK(count == MPI_UNDEFINED);
    OK(MPI_Get_elements_x(&status, MPI_2INT, &large));
    CHECK(large == (MPI_Count)INT_MAX + 7);
    OK(MPI_Get_count(&status, MPI_2INT, &count));
    CHECK(count == (int)(large / 2));
    OK(MPI_Status_set_cancelled(&status, 1));
    OK(MPI_Test_cancelled(&status, &there));
    CHECK(there);
    RAISES(MPI_ERR_COUNT, MPI_Status_set_elements_x(&status, MPI_DOUBLE_INT, (MPI_Count)1 << 61));
    RAISES(MPI_ERR_COUNT, MPI_Status_set_elements(&status, MPI_INT, -1));
    RAISES(MPI_ERR_TYPE, MPI_Get_elements(&status, MPI_DATATYPE_NULL, &count));
    /* Types of more bytes than there can be are refused. */
    RAISES(MPI_ERR_COUNT, MPI_Type_contiguous_c((MPI_Count)1 << 61, MPI_DOUBLE, &type));
    RAISES(MPI_ERR_COUNT, MPI_Type_vector_c((MPI_Count)1 << 40, (MPI_Count)1 << 40, 1, MPI_INT,
        &type));
    OK(MPI_Type_contiguous_c((MPI_Count)1 << 40, MPI_CHAR, &type));
    RAISES(MPI_ERR_COUNT, MPI_Type_contiguous_c((MPI_Count)1 << 40, type, &(MPI_Datatype){0}));
    MPI_Count size;
    RAISES(MPI_ERR_COUNT, MPI_Pack_size_c((MPI_Count)1 << 40, type, MPI_COMM_SELF, &size));
    RAISES(MPI_ERR_COUNT, MPI_Pack_external_size_c("external32", (MPI_Count)1 << 40, type, &size));
    OK(MPI_Pack_external_size_c("external32", 3, MPI_DOUBLE_INT, &size));
    CHECK(size == 36);
    OK(MPI_Type_free(&type));
}

int main(int argc, char **argv) {
    int rank, size;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    pairs();
    derived();
    received(rank, size - 1 - rank);
    limits();
    OK(MPI_Finalize());
    return 0;
}
