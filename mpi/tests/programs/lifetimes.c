/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the program frees while a request, a communicator or a datatype still uses it lives until
   that is over. */
#include "check.h"

static int rank, size, peer;

enum { N = 6 };

/* Every second of N integers. */
static MPI_Datatype comb(void) {
    MPI_Datatype type;
    OK(MPI_Type_vector(N / 2, 1, 2, MPI_INT, &type));
    OK(MPI_Type_commit(&type));
    return type;
}

static void fill(int *buffer, int n, int start) {
    for (int i = 0; i < n; i++) buffer[i] = start + i;
}

/* The teeth come from the sender, the gaps are as they were. */
static void arrived(const int *buffer, int from) {
    for (int i = 0; i < N; i++) CHECK(buffer[i] == (i % 2 ? -1 : from + i));
}

static void clear(int *buffer, int n) {
    for (int i = 0; i < n; i++) buffer[i] = -1;
}

static void single_requests(void) {
    int out[N], in[N];
    MPI_Request requests[2];
    MPI_Datatype type = comb();
    fill(out, N, 10 * rank);
    clear(in, N);
    OK(MPI_Irecv(in, 1, type, peer, 1, MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Issend(out, 1, type, peer, 1, MPI_COMM_WORLD, &requests[1]));
    OK(MPI_Type_free(&type));
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    arrived(in, 10 * peer);

    /* Prepared, freed, and then started again and again. */
    static char attached[4096];
    OK(MPI_Buffer_attach(attached, sizeof attached));
    for (int mode = 0; mode < 4; mode++) {
        MPI_Datatype copy, again;
        type = comb();
        copy = type;
        OK(MPI_Recv_init(in, 1, type, peer, 2, MPI_COMM_WORLD, &requests[0]));
        int (*prepare[])(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = {
            MPI_Send_init, MPI_Ssend_init, MPI_Bsend_init, MPI_Rsend_init};
        /* A ready send must find the receive: only a rank that sends to itself knows. */
        int at = mode == 3 && peer != rank ? 0 : mode;
        OK(prepare[at](out, 1, type, peer, 2, MPI_COMM_WORLD, &requests[1]));
        OK(MPI_Type_free(&type));
        RAISES(MPI_ERR_TYPE, MPI_Type_free(&copy));
        /* Its place is not given to others meanwhile. */
        again = comb();
        CHECK(again != copy);
        OK(MPI_Type_free(&again));
        for (int turn = 0; turn < 3; turn++) {
            fill(out, N, 10 * rank + turn);
            clear(in, N);
            OK(MPI_Startall(2, requests));
            OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
            arrived(in, 10 * peer + turn);
        }
        OK(MPI_Request_free(&requests[0]));
        OK(MPI_Request_free(&requests[1]));
        CHECK(requests[0] == MPI_REQUEST_NULL);
        RAISES(MPI_ERR_TYPE, MPI_Type_size(copy, &(int){0}));
    }
    OK(MPI_Buffer_detach(attached, &(int){0}));
}

static MPI_Datatype expected;
static int calls;

static void add(void *in, void *inout, int *n, MPI_Datatype *type) {
    MPI_Aint lb, extent;
    int elements;
    CHECK(*type == expected);
    OK(MPI_Type_get_extent(*type, &lb, &extent));
    OK(MPI_Type_size(*type, &elements));
    CHECK(lb == 0 && extent == (N - 1) * 4 && elements == N / 2 * 4);
    for (int i = 0; i < *n; i++)
        for (int k = 0; k < N; k += 2) {
            int *to = (int *)((char *)inout + i * extent) + k;
            *to += *((int *)((char *)in + i * extent) + k);
        }
    calls++;
}

static void is_sum(const int *buffer, int turn) {
    for (int i = 0; i < N; i++)
        CHECK(buffer[i] == (i % 2 ? -1 : size * (size - 1) / 2 * 10 + size * (i + turn)));
}

/* Reductions of the program get the handle of the type, which may be freed by then, and so may the
   operation. */
static void reductions(void) {
    int out[N], in[N];
    MPI_Request request;
    MPI_Op op;
    MPI_Datatype type = comb();
    expected = type;
    calls = 0;
    OK(MPI_Op_create(add, 1, &op));
    fill(out, N, 10 * rank);
    clear(in, N);
    OK(MPI_Iallreduce(out, in, 1, type, op, MPI_COMM_WORLD, &request));
    OK(MPI_Type_free(&type));
    OK(MPI_Op_free(&op));
    CHECK(op == MPI_OP_NULL);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    is_sum(in, 0);
    RAISES(MPI_ERR_TYPE, MPI_Type_commit(&expected));

    type = comb();
    expected = type;
    MPI_Op freed;
    OK(MPI_Op_create(add, 0, &op));
    freed = op;
    OK(MPI_Allreduce_init(out, in, 1, type, op, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    OK(MPI_Op_free(&op));
    OK(MPI_Type_free(&type));
    RAISES(MPI_ERR_OP, MPI_Op_free(&freed));
    for (int turn = 0; turn < 3; turn++) {
        fill(out, N, 10 * rank + turn);
        clear(in, N);
        OK(MPI_Start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        is_sum(in, turn);
    }
    OK(MPI_Request_free(&request));
    RAISES(MPI_ERR_TYPE, MPI_Type_commit(&expected));
    RAISES(MPI_ERR_OP, MPI_Op_commutative(freed, &(int){0}));
    CHECK(size == 1 || calls > 0);
    MPI_Op sum = MPI_SUM;
    RAISES(MPI_ERR_OP, MPI_Op_free(&sum));
}

/* Arrays of types: they, the types and the other arrays are the program's again when a call that
   does not wait returns. */
static void arrays(MPI_Comm comm, int neighbours, int (*who)(int)) {
    int n = neighbours;
    int *out = malloc(n * N * sizeof *out), *in = malloc(n * N * sizeof *in),
        *counts = malloc(n * sizeof *counts),
        *places = malloc(n * sizeof *places);
    MPI_Aint *wide = malloc(n * sizeof *wide);
    MPI_Datatype *types = malloc(n * sizeof *types);
    for (int form = 0; form < 2; form++) {
        MPI_Request request;
        for (int i = 0; i < n; i++) {
            counts[i] = 1;
            places[i] = i * N * 4;
            wide[i] = i * N * 4;
            types[i] = comb();
            fill(out + i * N, N, 10 * rank);
        }
        clear(in, n * N);
        if (who)
            OK((form ? MPI_Neighbor_alltoallw_init(out, counts, wide, types, in, counts, wide,
                types, comm,
                                                   MPI_INFO_NULL, &request)
                     : MPI_Ineighbor_alltoallw(out, counts, wide, types, in, counts, wide, types,
                         comm, &request)));
        else
            OK((form ? MPI_Alltoallw_init(out, counts, places, types, in, counts, places, types,
                comm, MPI_INFO_NULL,
                                          &request)
                     : MPI_Ialltoallw(out, counts, places, types, in, counts, places, types, comm,
                         &request)));
        for (int i = 0; i < n; i++) {
            OK(MPI_Type_free(&types[i]));
            types[i] = MPI_DATATYPE_NULL;
            /* The plain form leaves the counts alone until the end, but a type that is freed may
               be used. */
            if (form) counts[i] = 9, places[i] = 1, wide[i] = 1;
        }
        for (int turn = 0; turn < (form ? 3 : 1); turn++) {
            clear(in, n * N);
            if (form) OK(MPI_Start(&request));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            for (int i = 0; i < n; i++) arrived(in + i * N, 10 * (who ? who(i) : i));
        }
        if (form) OK(MPI_Request_free(&request));
    }
    free(out);
    free(in);
    free(counts);
    free(places);
    free(wide);
    free(types);
}

static int on_the_ring(int i) {
    return (rank + (i ? 1 : size - 1)) % size;
}

static void collectives(void) {
    MPI_Comm ring;
    int in[N], out[N];
    arrays(MPI_COMM_WORLD, size, NULL);
    OK(MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &(int){1}, 0, &ring));
    arrays(ring, 2, on_the_ring);
    /* The communicator itself goes while its collective is prepared. */
    MPI_Request request;
    MPI_Datatype type = comb();
    MPI_Info info;
    OK(MPI_Info_create(&info));
    OK(MPI_Bcast_init(rank == 0 ? out : in, 1, type, 0, ring, info, &request));
    OK(MPI_Info_free(&info));
    OK(MPI_Type_free(&type));
    OK(MPI_Comm_free(&ring));
    for (int turn = 0; turn < 3; turn++) {
        fill(out, N, turn);
        clear(in, N);
        OK(MPI_Start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        if (rank) arrived(in, turn);
    }
    OK(MPI_Request_free(&request));
}

/* Types live in those that were made of them, at any depth, and in what these tell of themselves.
   */
static void nested(void) {
    MPI_Datatype type = comb(), next, part;
    int out[8 * N], in[8 * N], n[3], combiner;
    for (int depth = 0; depth < 3; depth++) {
        OK(MPI_Type_create_resized(type, 0, N * 4 << depth, &next));
        OK(MPI_Type_free(&type));
        OK(MPI_Type_contiguous(2, next, &type));
        OK(MPI_Type_free(&next));
    }
    OK(MPI_Type_commit(&type));
    fill(out, 8 * N, 0);
    clear(in, 8 * N);
    MPI_Request request;
    OK(MPI_Irecv(in, 1, type, rank, 1, MPI_COMM_WORLD, &request));
    OK(MPI_Send(out, 1, type, rank, 1, MPI_COMM_WORLD));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    for (int i = 0; i < 8 * N; i++) CHECK(in[i] == (i % 2 ? -1 : i));
    for (int depth = 0; depth < 6; depth++) {
        MPI_Aint addresses[2];
        OK(MPI_Type_get_envelope(type, &n[0], &n[1], &n[2], &combiner));
        CHECK(combiner == (depth % 2 ? MPI_COMBINER_RESIZED : MPI_COMBINER_CONTIGUOUS));
        OK(MPI_Type_get_contents(type, 1, 2, 1, n, addresses, &part));
        OK(MPI_Type_free(&type));
        type = part;
    }
    OK(MPI_Type_get_envelope(type, &n[0], &n[1], &n[2], &combiner));
    CHECK(combiner == MPI_COMBINER_VECTOR);
    int integers[3];
    OK(MPI_Type_get_contents(type, 3, 0, 1, integers, NULL, &part));
    CHECK(part == MPI_INT && integers[0] == N / 2 && integers[1] == 1 && integers[2] == 2);
    OK(MPI_Type_free(&type));
    /* Fortran's types without names have one handle each. */
    MPI_Datatype real, same;
    OK(MPI_Type_create_f90_real(15, MPI_UNDEFINED, &real));
    OK(MPI_Type_contiguous(2, real, &type));
    OK(MPI_Type_get_contents(type, 1, 0, 1, integers, NULL, &same));
    CHECK(same == real);
    RAISES(MPI_ERR_TYPE, MPI_Type_free(&same));
    OK(MPI_Type_free(&type));
    double one = 1.5, sum = 0;
    OK(MPI_Allreduce(&one, &sum, 1, real, MPI_SUM, MPI_COMM_WORLD));
    CHECK(sum == 1.5 * size);
}

static int handled;

static void handler(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    handled = *code;
}

/* A request's error goes to the handler of its communicator, though both were freed. */
static void handlers(void) {
    MPI_Errhandler own, copy, other;
    MPI_Comm comm, second;
    MPI_Request request;
    int in = 0;
    long long out[4] = {1, 2, 3, 4};
    OK(MPI_Comm_create_errhandler(handler, &own));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
    OK(MPI_Comm_set_errhandler(comm, own));
    OK(MPI_Comm_dup(comm, &second));
    copy = own;
    OK(MPI_Errhandler_free(&own));
    RAISES(MPI_ERR_ERRHANDLER, MPI_Errhandler_free(&copy));
    OK(MPI_Comm_get_errhandler(comm, &other));
    OK(MPI_Errhandler_free(&other));
    RAISES(MPI_ERR_ERRHANDLER, MPI_Errhandler_free(&copy));
    OK(MPI_Irecv(&in, 1, MPI_INT, 0, 1, comm, &request));
    MPI_Request sent;
    OK(MPI_Isend(out, 4, MPI_LONG_LONG, 0, 1, comm, &sent));
    OK(MPI_Comm_free(&comm));
    handled = 0;
    RAISES(MPI_ERR_TRUNCATE, MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(class_of(handled) == MPI_ERR_TRUNCATE && request == MPI_REQUEST_NULL);
    OK(MPI_Wait(&sent, MPI_STATUS_IGNORE));
    handled = 0;
    RAISES(MPI_ERR_RANK, MPI_Send(out, 1, MPI_INT, 5, 1, second));
    CHECK(class_of(handled) == MPI_ERR_RANK);
    OK(MPI_Comm_free(&second));
    RAISES(MPI_ERR_ERRHANDLER, MPI_Comm_set_errhandler(MPI_COMM_SELF, copy));
}

/* Messages that are matched, and receives that wait, on a communicator that is freed. */
static void communicators(void) {
    MPI_Comm comm, copy;
    MPI_Request requests[2];
    MPI_Message message;
    int out = rank, in = -1, late = -1;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Isend(&out, 1, MPI_INT, peer, 1, comm, &requests[0]));
    OK(MPI_Mprobe(peer, 1, comm, &message, MPI_STATUS_IGNORE));
    OK(MPI_Irecv(&late, 1, MPI_INT, MPI_ANY_SOURCE, 2, comm, &requests[1]));
    OK(MPI_Send(&out, 1, MPI_INT, peer, 2, comm));
    OK(MPI_Comm_free(&comm));
    MPI_Status status;
    OK(MPI_Mrecv(&in, 1, MPI_INT, &message, &status));
    CHECK(in == peer && status.MPI_SOURCE == peer);
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    CHECK(late == peer);
    /* A duplicate that is still being made lives without the original. */
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Comm_idup(comm, &copy, &requests[0]));
    OK(MPI_Comm_free(&comm));
    OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    OK(MPI_Allreduce(&out, &in, 1, MPI_INT, MPI_MAX, copy));
    CHECK(in == size - 1);
    OK(MPI_Comm_free(&copy));
}

/* A request whose status is asked for lives on. */
static void looked_at(void) {
    MPI_Request requests[3] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Status status;
    int index = 7, flag = 0, in = 0, out = 5;
    OK(MPI_Request_get_status_any(3, requests, &index, &flag, &status));
    CHECK(flag && index == MPI_UNDEFINED && status.MPI_SOURCE == MPI_ANY_SOURCE);
    OK(MPI_Irecv(&in, 1, MPI_INT, rank, 9, MPI_COMM_WORLD, &requests[1]));
    OK(MPI_Request_get_status_any(3, requests, &index, &flag, &status));
    CHECK(!flag && index == MPI_UNDEFINED);
    OK(MPI_Send(&out, 1, MPI_INT, rank, 9, MPI_COMM_WORLD));
    while (!flag) OK(MPI_Request_get_status_any(3, requests, &index, &flag, &status));
    CHECK(index == 1 && status.MPI_SOURCE == rank && status.MPI_TAG == 9);
    CHECK(requests[1] != MPI_REQUEST_NULL);
    OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
    CHECK(in == 5 && requests[1] == MPI_REQUEST_NULL);
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    peer = size - 1 - rank;
    looked_at();
    single_requests();
    reductions();
    collectives();
    nested();
    handlers();
    communicators();
    OK(MPI_Finalize());
    return 0;
}
