/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The objects that the expressions of mpi/abi/wrong.txt name, made anew for each call, and what is checked of it. */
#ifndef OBJECTS_H
#define OBJECTS_H
#define _GNU_SOURCE

#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLASS(name) (UINT64_C(1) << CLASS_##name)
/* No error is wanted, and none may come. */
#define VALID (UINT64_C(1) << 63)
/* The largest count of so many bits, or a lower one of one bit. So many elements of four bytes are more than a buffer
 * can have, and their sizes wrap around. An int cannot hold it. */
#define VAST(array, bits)                                                                                              \
    ((__typeof__(*(array)))(sizeof *(array) < 8 ? -1 : (bits) == 63 ? INT64_MAX : INT64_C(1) << (bits)))
#define GUARD 64
#define ROOM 64
#define POLLS 20000

enum {
    CLASS_SUCCESS = 0, CLASS_BUFFER = MPI_ERR_BUFFER, CLASS_COUNT = MPI_ERR_COUNT, CLASS_TYPE = MPI_ERR_TYPE,
    CLASS_TAG = MPI_ERR_TAG, CLASS_COMM = MPI_ERR_COMM, CLASS_RANK = MPI_ERR_RANK, CLASS_REQUEST = MPI_ERR_REQUEST,
    CLASS_ROOT = MPI_ERR_ROOT, CLASS_GROUP = MPI_ERR_GROUP, CLASS_OP = MPI_ERR_OP, CLASS_TOPOLOGY = MPI_ERR_TOPOLOGY,
    CLASS_DIMS = MPI_ERR_DIMS, CLASS_ARG = MPI_ERR_ARG, CLASS_TRUNCATE = MPI_ERR_TRUNCATE, CLASS_OTHER = MPI_ERR_OTHER,
    CLASS_IN_STATUS = MPI_ERR_IN_STATUS, CLASS_DISP = MPI_ERR_DISP, CLASS_INFO = MPI_ERR_INFO,
    CLASS_INFO_KEY = MPI_ERR_INFO_KEY, CLASS_INFO_VALUE = MPI_ERR_INFO_VALUE, CLASS_INFO_NOKEY = MPI_ERR_INFO_NOKEY,
    CLASS_KEYVAL = MPI_ERR_KEYVAL, CLASS_NO_MEM = MPI_ERR_NO_MEM, CLASS_NO_SPACE = MPI_ERR_NO_SPACE,
    CLASS_ERRHANDLER = MPI_ERR_ERRHANDLER, CLASS_ABI = MPI_ERR_ABI, CLASS_BASE = MPI_ERR_BASE,
    CLASS_UNSUPPORTED_DATAREP = MPI_ERR_UNSUPPORTED_DATAREP
};

struct call {
    const char *name;
    void (*run)(int which);
    int cases;
};

struct guarded {
    unsigned char before[GUARD];
    int data[ROOM];
    unsigned char after[GUARD];
};

static struct {
    int rank, size;
    MPI_Comm comm, gone_comm, out_comm, cart, graph, dist;
    MPI_Group group, gone_group, out_group;
    MPI_Datatype type, raw_type, vast_type, own_type, gone_type, out_type, types[ROOM];
    MPI_Op op, gone_op, out_op;
    MPI_Info info, gone_info, out_info;
    MPI_Errhandler errhandler, gone_errhandler, out_errhandler;
    MPI_Request request, inactive, gone_request, out_request, posted, expected;
    MPI_Message message, gone_message, out_message;
    MPI_Status status;
    int keyval, type_keyval, own_keyval, gone_keyval, attached, attached_comm, error_class, error_code;
    struct guarded send, recv;
    int counts_i[ROOM], places_i[ROOM], sizes_i[ROOM], position_i[1], long_out_i[ROOM];
    MPI_Count counts_l[ROOM], places_l[ROOM], sizes_l[ROOM], position_l[1], long_out_l[ROOM];
    MPI_Aint addresses[ROOM];
    int zeros[ROOM], ones[ROOM], distribs[ROOM], dargs[ROOM], ranges[ROOM][3], int_out[ROOM], posted_value, into[ROOM];
    MPI_Status statuses[ROOM];
    char text[MPI_MAX_LIBRARY_VERSION_STRING], long_text[3000], *arguments[2];
    char attached_bytes[8192];
    void *pointer, *allocated;
} w;

/* Where collectives run: MPI_COMM_SELF, or all ranks. */
static MPI_Comm home;
static int at_case, failures, refused, tried;
static const char *call_name = "", *name_now = "", *parameter_now = "", *value_now = "";
static uint64_t wanted;

static void say_where(const char *what, const char *why) {
    char line[1024];
    int len = snprintf(line, sizeof line, "%s %d %s(%s = %s): %s\n", what, at_case, name_now, parameter_now, value_now, why);
    if (write(STDOUT_FILENO, line, (size_t)len) < 0) {
        _exit(96);
    }
}

static void failed(const char *what) {
    say_where("FAIL", what);
    failures += 1;
}

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if ((what) != MPI_SUCCESS) {                                                                                   \
            failed("what the call needs could not be made: " #what);                                                   \
        }                                                                                                              \
    } while (0)

static void on_error(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    (void)code;
}

static void add_i(void *in, void *inout, int *len, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *len; i++) {
        ((int *)inout)[i] += ((int *)in)[i];
    }
}

static void add_l(void *in, void *inout, MPI_Count *len, MPI_Datatype *type) {
    int few = (int)*len;
    add_i(in, inout, &few, type);
}

static void post(int tag) {
    NEED(MPI_Isend(&w.posted_value, 1, MPI_INT, w.rank, tag, w.comm, &w.posted));
}

static MPI_Request expected(void) {
    MPI_Request request;
    NEED(MPI_Irecv(w.into, ROOM, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, w.comm, &request));
    return request;
}

static void expect(void) { w.expected = expected(); }

static void attach(void) {
    NEED(MPI_Buffer_attach(w.attached_bytes, sizeof w.attached_bytes));
    w.attached = 1;
}

static void attach_comm(void) {
    NEED(MPI_Comm_attach_buffer(w.comm, w.attached_bytes, sizeof w.attached_bytes));
    w.attached_comm = 1;
}

static void *allocated(void) {
    NEED(MPI_Alloc_mem(64, MPI_INFO_NULL, &w.allocated));
    return w.allocated;
}

static int new_class(void) {
    NEED(MPI_Add_error_class(&w.error_class));
    return w.error_class;
}

static int new_code(void) {
    NEED(MPI_Add_error_code(MPI_ERR_OTHER, &w.error_code));
    return w.error_code;
}

static int new_string(void) {
    NEED(MPI_Add_error_string(new_code(), "a string"));
    return w.error_code;
}

/* A receive that completes. */
static MPI_Request *asked(void) {
    NEED(MPI_Irecv(w.into, ROOM, MPI_INT, w.rank, 77, w.comm, &w.request));
    post(77);
    return &w.request;
}

static MPI_Request *inactive(void) {
    NEED(MPI_Recv_init(w.into, ROOM, MPI_INT, w.rank, 78, w.comm, &w.inactive));
    asked();
    return &w.inactive;
}

static MPI_Message *matched(void) {
    MPI_Message message;
    MPI_Request request;
    int value;
    NEED(MPI_Isend(&w.posted_value, 1, MPI_INT, w.rank, 6, w.comm, &request));
    NEED(MPI_Mprobe(w.rank, 6, w.comm, &message, MPI_STATUS_IGNORE));
    w.gone_message = message;
    NEED(MPI_Mrecv(&value, 1, MPI_INT, &message, MPI_STATUS_IGNORE));
    NEED(MPI_Wait(&request, MPI_STATUS_IGNORE));
    post(5);
    NEED(MPI_Mprobe(w.rank, 5, w.comm, &w.message, MPI_STATUS_IGNORE));
    return &w.message;
}

static void guard(struct guarded *buffer, int value) {
    memset(buffer->before, 0xa5, GUARD);
    memset(buffer->after, 0xa5, GUARD);
    for (int i = 0; i < ROOM; i++) {
        buffer->data[i] = value;
    }
}

static int is_whole(const struct guarded *buffer) {
    for (int i = 0; i < GUARD; i++) {
        if (buffer->before[i] != 0xa5 || buffer->after[i] != 0xa5) {
            return 0;
        }
    }
    return 1;
}

static void types_made(void) {
    NEED(MPI_Type_contiguous(2, MPI_INT, &w.type));
    NEED(MPI_Type_commit(&w.type));
    NEED(MPI_Type_contiguous(3, MPI_INT, &w.raw_type));
    NEED(MPI_Type_contiguous_c((MPI_Count)1 << 60, MPI_INT, &w.vast_type));
    NEED(MPI_Type_commit(&w.vast_type));
    NEED(MPI_Type_vector(2, 1, 2, MPI_INT, &w.own_type));
    NEED(MPI_Type_dup(w.type, &w.out_type));
    w.gone_type = w.out_type;
    NEED(MPI_Type_free(&w.out_type));
}

static void handles_made(void) {
    NEED(MPI_Comm_dup(home, &w.comm));
    NEED(MPI_Comm_dup(home, &w.out_comm));
    w.gone_comm = w.out_comm;
    NEED(MPI_Comm_free(&w.out_comm));
    NEED(MPI_Comm_group(home, &w.group));
    NEED(MPI_Group_incl(w.group, 1, w.zeros, &w.out_group));
    w.gone_group = w.out_group;
    NEED(MPI_Group_free(&w.out_group));
    NEED(MPI_Op_create(add_i, 1, &w.op));
    NEED(MPI_Op_create(add_i, 1, &w.out_op));
    w.gone_op = w.out_op;
    NEED(MPI_Op_free(&w.out_op));
    NEED(MPI_Info_create(&w.info));
    NEED(MPI_Info_set(w.info, "key", "value"));
    NEED(MPI_Info_create(&w.out_info));
    w.gone_info = w.out_info;
    NEED(MPI_Info_free(&w.out_info));
    NEED(MPI_Comm_create_errhandler(on_error, &w.errhandler));
    NEED(MPI_Comm_create_errhandler(on_error, &w.out_errhandler));
    w.gone_errhandler = w.out_errhandler;
    NEED(MPI_Errhandler_free(&w.out_errhandler));
    NEED(MPI_Recv_init(w.into, 1, MPI_INT, w.rank, 9, w.comm, &w.out_request));
    w.gone_request = w.out_request;
    NEED(MPI_Request_free(&w.out_request));
}

static void keys_made(void) {
    NEED(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &w.keyval, NULL));
    NEED(MPI_Comm_set_attr(w.comm, w.keyval, &w));
    NEED(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &w.type_keyval, NULL));
    NEED(MPI_Type_set_attr(w.type, w.type_keyval, &w));
    NEED(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &w.own_keyval, NULL));
    w.gone_keyval = w.own_keyval;
    NEED(MPI_Comm_free_keyval(&w.own_keyval));
}

static int *comm_key(void) {
    NEED(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &w.own_keyval, NULL));
    return &w.own_keyval;
}

static int *type_key(void) {
    NEED(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &w.own_keyval, NULL));
    return &w.own_keyval;
}

static int *win_key(void) {
    NEED(MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, MPI_WIN_NULL_DELETE_FN, &w.own_keyval, NULL));
    return &w.own_keyval;
}

static void made(void) {
    MPI_Comm cart = w.cart, graph = w.graph, dist = w.dist;
    memset(&w, 0, sizeof w);
    w.cart = cart, w.graph = graph, w.dist = dist;
    name_now = "what is made before", parameter_now = value_now = "";
    MPI_Comm_rank(home, &w.rank);
    MPI_Comm_size(home, &w.size);
    guard(&w.send, 1);
    guard(&w.recv, 0);
    for (int i = 0; i < ROOM; i++) {
        w.counts_i[i] = w.ones[i] = 1;
        w.counts_l[i] = 1;
        w.places_i[i] = 4 * i;
        w.places_l[i] = w.addresses[i] = 4 * i;
        w.sizes_i[i] = 8;
        w.sizes_l[i] = 8;
        w.types[i] = MPI_INT;
        w.distribs[i] = MPI_DISTRIBUTE_BLOCK;
        w.dargs[i] = MPI_DISTRIBUTE_DFLT_DARG;
        w.ranges[i][2] = 1;
    }
    memset(w.long_text, 'a', sizeof w.long_text - 1);
    w.arguments[0] = w.long_text;
    w.out_comm = MPI_COMM_NULL;
    w.out_group = MPI_GROUP_NULL;
    w.out_type = w.own_type = MPI_DATATYPE_NULL;
    w.out_op = MPI_OP_NULL;
    w.out_info = MPI_INFO_NULL;
    w.out_errhandler = MPI_ERRHANDLER_NULL;
    w.out_request = w.request = w.inactive = w.posted = w.expected = MPI_REQUEST_NULL;
    w.message = w.out_message = MPI_MESSAGE_NULL;
    w.own_keyval = MPI_KEYVAL_INVALID;
    handles_made();
    types_made();
    keys_made();
}

static void want(const char *parameter, const char *value, uint64_t classes) {
    name_now = call_name;
    parameter_now = parameter;
    value_now = value;
    wanted = classes;
}

/* Of run.h, which knows all calls. */
static void finished(int code, int frees);
static void ended(void);

static void begun(void) {
    tried += 1;
}
#endif
