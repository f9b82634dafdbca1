/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Errors reach the handler with the standard's class. */
#include "check.h"

static int called;

static void handler(MPI_Comm *comm, int *code, ...) {
    CHECK(*comm == MPI_COMM_WORLD);
    called = *code;
}

/* The communicator of the last error. */
static MPI_Comm raised_on;

static void noted(MPI_Comm *comm, int *code, ...) {
    (void)code;
    raised_on = *comm;
}

/* What is wrong with the receive of a matched message is an error of the message's communicator. */
static void matched_messages(int rank) {
    MPI_Errhandler note;
    MPI_Comm comm;
    MPI_Request sent, request;
    MPI_Message message;
    int pair[2] = {1, 2}, one;
    OK(MPI_Comm_create_errhandler(noted, &note));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Comm_set_errhandler(comm, note));
    OK(MPI_Isend(pair, 2, MPI_INT, rank, 3, comm, &sent));
    OK(MPI_Mprobe(rank, 3, comm, &message, MPI_STATUS_IGNORE));
#define RAISES_HERE(class, call)                                                                                       \
    do {                                                                                                               \
        raised_on = MPI_COMM_NULL;                                                                                     \
        RAISES(class, call);                                                                                           \
        CHECK(raised_on == comm);                                                                                      \
    } while (0)
    RAISES_HERE(MPI_ERR_TYPE, MPI_Mrecv(&one, 1, MPI_DATATYPE_NULL, &message, MPI_STATUS_IGNORE));
    RAISES_HERE(MPI_ERR_COUNT, MPI_Mrecv(&one, -1, MPI_INT, &message, MPI_STATUS_IGNORE));
    RAISES_HERE(MPI_ERR_BUFFER, MPI_Mrecv(NULL, 1, MPI_INT, &message, MPI_STATUS_IGNORE));
    RAISES_HERE(MPI_ERR_TYPE, MPI_Imrecv(&one, 1, MPI_DATATYPE_NULL, &message, &request));
    RAISES_HERE(MPI_ERR_ARG, MPI_Imrecv(&one, 1, MPI_INT, &message, NULL));
    /* It is still there, and longer than its buffer. */
    RAISES_HERE(MPI_ERR_TRUNCATE, MPI_Mrecv(&one, 1, MPI_INT, &message, MPI_STATUS_IGNORE));
    CHECK(message == MPI_MESSAGE_NULL);
    OK(MPI_Wait(&sent, MPI_STATUS_IGNORE));
    OK(MPI_Isend(pair, 2, MPI_INT, rank, 3, comm, &sent));
    OK(MPI_Mprobe(rank, 3, comm, &message, MPI_STATUS_IGNORE));
    OK(MPI_Imrecv(&one, 1, MPI_INT, &message, &request));
    RAISES_HERE(MPI_ERR_TRUNCATE, MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&sent, MPI_STATUS_IGNORE));
    OK(MPI_Errhandler_free(&note));
    OK(MPI_Comm_free(&comm));
}

int main(int argc, char **argv) {
    int rank, size, value = 7, flag, len;
    char text[MPI_MAX_ERROR_STRING];
    OK(MPI_Init(&argc, &argv));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    RAISES(MPI_ERR_RANK, MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD));
    RAISES(MPI_ERR_RANK, MPI_Recv(&value, 1, MPI_INT, -7, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    RAISES(MPI_ERR_TAG, MPI_Send(&value, 1, MPI_INT, 0, -1, MPI_COMM_WORLD));
    RAISES(MPI_ERR_COUNT, MPI_Send(&value, -1, MPI_INT, 0, 0, MPI_COMM_WORLD));
    RAISES(MPI_ERR_TYPE, MPI_Send(&value, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_WORLD));
    RAISES(MPI_ERR_BUFFER, MPI_Send(NULL, 1, MPI_INT, 0, 0, MPI_COMM_WORLD));
    RAISES(MPI_ERR_COMM, MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_NULL));
    RAISES(MPI_ERR_ROOT, MPI_Bcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD));
    RAISES(MPI_ERR_OP, MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD));
    RAISES(MPI_ERR_OP, MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_BAND, MPI_COMM_WORLD));
    if (rank != 0) {
        /* Only the root's result could be in place. It is refused before anybody is told, so rank 0 has nothing to take part in. */
        RAISES(MPI_ERR_BUFFER, MPI_Reduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD));
        RAISES(MPI_ERR_BUFFER, MPI_Reduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT_INT, MPI_MAXLOC, 0, MPI_COMM_WORLD));
    }
    /* Counts that only together are more than a buffer can have. */
    MPI_Count each[3] = {1LL << 62, 1LL << 62, 1LL << 62};
    RAISES(MPI_ERR_COUNT, MPI_Reduce_scatter_c(&value, &value, each, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    RAISES(MPI_ERR_COUNT, MPI_Reduce_scatter_block_c(&value, &value, 1LL << 62, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    MPI_Request bad = (MPI_Request)0x7777777;
    RAISES(MPI_ERR_REQUEST, MPI_Wait(&bad, MPI_STATUS_IGNORE));
    MPI_Request posted, ended;
    OK(MPI_Irecv(&value, 1, MPI_INT, rank, 8, MPI_COMM_WORLD, &posted));
    RAISES(MPI_ERR_REQUEST, MPI_Start(&posted));
    OK(MPI_Send(&value, 1, MPI_INT, rank, 8, MPI_COMM_WORLD));
    ended = posted;
    OK(MPI_Wait(&posted, MPI_STATUS_IGNORE));
    for (int i = 0; i < 2; i++) {
        MPI_Request again = ended;
        RAISES(MPI_ERR_REQUEST, MPI_Wait(&again, MPI_STATUS_IGNORE));
        RAISES(MPI_ERR_REQUEST, MPI_Waitall(1, &again, MPI_STATUSES_IGNORE));
        RAISES(MPI_ERR_REQUEST, MPI_Test(&again, &flag, MPI_STATUS_IGNORE));
        RAISES(MPI_ERR_REQUEST, MPI_Cancel(&again));
        RAISES(MPI_ERR_REQUEST, MPI_Request_free(&again));
        /* Its place is used again, its handle is not. */
        OK(MPI_Irecv(&value, 1, MPI_INT, MPI_PROC_NULL, 8, MPI_COMM_WORLD, &posted));
        OK(MPI_Wait(&posted, MPI_STATUS_IGNORE));
    }
    MPI_Group no_group = MPI_GROUP_NULL;
    RAISES(MPI_ERR_GROUP, MPI_Group_size(no_group, &value));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_delete_attr(MPI_COMM_WORLD, 12345));
    RAISES(MPI_ERR_BASE, MPI_Free_mem(&value));
    MPI_Datatype fresh;
    OK(MPI_Type_contiguous(2, MPI_INT, &fresh));
    RAISES(MPI_ERR_TYPE, MPI_Send(&value, 1, fresh, 0, 0, MPI_COMM_WORLD));
    MPI_Datatype gone = fresh;
    OK(MPI_Type_free(&fresh));
    RAISES(MPI_ERR_TYPE, MPI_Type_commit(&gone));

    /* A message that is too long. */
    long pair[2] = {1, 2};
    int one[1];
    MPI_Request request;
    MPI_Status status;
    OK(MPI_Isend(pair, 2, MPI_LONG, rank, 9, MPI_COMM_WORLD, &request));
    RAISES(MPI_ERR_TRUNCATE, MPI_Recv(one, 1, MPI_INT, rank, 9, MPI_COMM_WORLD, &status));
    CHECK(status.MPI_SOURCE == rank && status.MPI_TAG == 9);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));

    matched_messages(rank);

    /* What is not implemented says so. */
    int unsupported = MPI_Comm_spawn("x", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, NULL, NULL);
    CHECK(class_of(unsupported) == MPI_ERR_UNSUPPORTED_OPERATION);
    OK(MPI_Error_string(unsupported, text, &len));
    CHECK(strstr(text, "MPI_Comm_spawn") && (int)strlen(text) == len);

    /* A handler of the program. */
    MPI_Errhandler own, found;
    OK(MPI_Comm_create_errhandler(handler, &own));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, own));
    OK(MPI_Errhandler_free(&own));
    CHECK(own == MPI_ERRHANDLER_NULL);
    RAISES(MPI_ERR_RANK, MPI_Send(&value, 1, MPI_INT, size + 5, 0, MPI_COMM_WORLD));
    CHECK(class_of(called) == MPI_ERR_RANK);
    OK(MPI_Comm_call_errhandler(MPI_COMM_WORLD, MPI_ERR_OTHER));
    CHECK(called == MPI_ERR_OTHER);
    OK(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &found));
    OK(MPI_Errhandler_free(&found));

    /* Classes and codes of the program. */
    int class, code, last;
    OK(MPI_Add_error_class(&class));
    OK(MPI_Add_error_code(class, &code));
    OK(MPI_Add_error_string(code, "of my own"));
    CHECK(class > MPI_ERR_LASTCODE && class_of(code) == class);
    OK(MPI_Error_string(code, text, &len));
    CHECK(strcmp(text, "of my own") == 0);
    void *place;
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_LASTUSEDCODE, &place, &flag));
    last = *(int *)place;
    CHECK(flag && last == code);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (argc > 1 && rank == 0) MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD);
    OK(MPI_Finalize());
    return 0;
}
