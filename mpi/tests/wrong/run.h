/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is done after each call, and the order of the calls. */

/* Receives what came to this rank and nobody wants. */
static int drain(void) {
    static int scratch[65536];
    int flag = 0;
    MPI_Status status;
    if (w.comm == MPI_COMM_NULL) {
        return 0;
    }
    if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, w.comm, &flag, &status) == MPI_SUCCESS && flag) {
        MPI_Recv(scratch, sizeof scratch, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, w.comm, MPI_STATUS_IGNORE);
    }
    return flag;
}

/* Completes a request, and gives how it ended. */
static int settle(MPI_Request *request) {
    int flag = 0, code = MPI_SUCCESS;
    for (int polls = 0; *request != MPI_REQUEST_NULL && polls < POLLS; polls++) {
        code = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
        if (flag || code != MPI_SUCCESS) {
            return code;
        }
        if (!drain() && polls == 300) {
            /* A receive that nothing was sent to. */
            MPI_Cancel(request);
        }
    }
    if (*request != MPI_REQUEST_NULL) {
        failed("the request does not end");
    }
    return code;
}

/* Ends what the call began, be it persistent. */
static int ended_of(MPI_Request *request) {
    int code = settle(request);
    if (code == MPI_SUCCESS && *request != MPI_REQUEST_NULL) {
        code = MPI_Start(request);
        if (code == MPI_SUCCESS) {
            code = settle(request);
        }
        int freed = *request == MPI_REQUEST_NULL ? MPI_SUCCESS : MPI_Request_free(request);
        code = code == MPI_SUCCESS ? freed : code;
    }
    return code;
}

static void judged(int code) {
    int class = MPI_ERR_UNKNOWN, len = 0;
    char text[MPI_MAX_ERROR_STRING], said[MPI_MAX_ERROR_STRING + 64];
    if (MPI_Error_class(code, &class) != MPI_SUCCESS || MPI_Error_string(code, text, &len) != MPI_SUCCESS) {
        failed("a code that is none");
        return;
    }
    refused += class != MPI_SUCCESS;
    snprintf(said, sizeof said, "class %d: %s", class, text);
    if (wanted == VALID ? class != MPI_SUCCESS : wanted != 0 && !(wanted >> class & 1)) {
        failed(said);
    }
}

#define FREE(handle, null, free)                                                                                       \
    do {                                                                                                               \
        if ((handle) != (null) && free(&(handle)) != MPI_SUCCESS) {                                                    \
            failed("what was made cannot be freed: " #handle);                                                         \
        }                                                                                                              \
    } while (0)

/* Frees what the call gave. */
static void finished(int code, int frees) {
    if (code == MPI_SUCCESS && frees) {
        code = ended_of(&w.out_request);
    }
    int gave = code == MPI_SUCCESS && frees;
    judged(code);
    if (gave) {
        if (w.out_comm != MPI_COMM_WORLD && w.out_comm != MPI_COMM_SELF) {
            FREE(w.out_comm, MPI_COMM_NULL, MPI_Comm_free);
        }
        if (w.out_group != MPI_GROUP_EMPTY) {
            FREE(w.out_group, MPI_GROUP_NULL, MPI_Group_free);
        }
        FREE(w.out_op, MPI_OP_NULL, MPI_Op_free);
        FREE(w.out_info, MPI_INFO_NULL, MPI_Info_free);
        if (w.out_errhandler != MPI_ERRORS_RETURN) {
            FREE(w.out_errhandler, MPI_ERRHANDLER_NULL, MPI_Errhandler_free);
        }
        if (w.out_type > (MPI_Datatype)4096) {
            FREE(w.out_type, MPI_DATATYPE_NULL, MPI_Type_free);
        }
        if (w.out_message != MPI_MESSAGE_NULL) {
            NEED(MPI_Mrecv(w.into, ROOM, MPI_INT, &w.out_message, MPI_STATUS_IGNORE));
        }
    }
}

/* A message to this rank arrives where it is sent to: nothing that was refused is still posted. */
static void nothing_is_posted(void) {
    int flag = 0, value = 0;
    MPI_Request request;
    while (drain()) {
    }
    NEED(MPI_Isend(&w.posted_value, 1, MPI_INT, w.rank, 5, w.comm, &request));
    for (int polls = 0; !flag && polls < POLLS; polls++) {
        NEED(MPI_Iprobe(w.rank, 5, w.comm, &flag, MPI_STATUS_IGNORE));
    }
    if (!flag) {
        failed("a receive is still posted");
        return;
    }
    NEED(MPI_Recv(&value, 1, MPI_INT, w.rank, 5, w.comm, MPI_STATUS_IGNORE));
    NEED(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

/* Ends and frees all that was made for the call, and looks at what it had to leave alone. */
static void ended(void) {
    if (w.message != MPI_MESSAGE_NULL) {
        NEED(MPI_Mrecv(w.into, ROOM, MPI_INT, &w.message, MPI_STATUS_IGNORE));
    }
    settle(&w.request);
    if (w.inactive != MPI_REQUEST_NULL) {
        settle(&w.inactive);
        FREE(w.inactive, MPI_REQUEST_NULL, MPI_Request_free);
    }
    settle(&w.expected);
    settle(&w.posted);
    if (w.attached) {
        NEED(MPI_Buffer_detach(&w.pointer, w.int_out));
    }
    if (w.attached_comm) {
        NEED(MPI_Comm_detach_buffer(w.comm, &w.pointer, w.int_out));
    }
    if (w.allocated) {
        NEED(MPI_Free_mem(w.allocated));
    }
    if (w.comm != MPI_COMM_NULL) {
        nothing_is_posted();
        MPI_Comm_delete_attr(w.comm, w.keyval);
    }
    MPI_Type_delete_attr(w.type, w.type_keyval);
    if (!is_whole(&w.send) || !is_whole(&w.recv)) {
        failed("bytes beside the buffer were written");
    }
    NEED(MPI_Comm_free_keyval(&w.keyval));
    NEED(MPI_Type_free_keyval(&w.type_keyval));
    FREE(w.comm, MPI_COMM_NULL, MPI_Comm_free);
    FREE(w.group, MPI_GROUP_NULL, MPI_Group_free);
    FREE(w.op, MPI_OP_NULL, MPI_Op_free);
    FREE(w.info, MPI_INFO_NULL, MPI_Info_free);
    FREE(w.errhandler, MPI_ERRHANDLER_NULL, MPI_Errhandler_free);
    FREE(w.own_type, MPI_DATATYPE_NULL, MPI_Type_free);
    FREE(w.type, MPI_DATATYPE_NULL, MPI_Type_free);
    FREE(w.raw_type, MPI_DATATYPE_NULL, MPI_Type_free);
    FREE(w.vast_type, MPI_DATATYPE_NULL, MPI_Type_free);
}

/* The library still does what it is for. */
static void traffic(void) {
    int rank, size, sum = 0, got = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    name_now = "traffic", parameter_now = value_now = "";
    static char out[300000], in[300000];
    for (int len = 1; len <= (int)sizeof out; len = len * 7 + 1) {
        memset(out, rank + len, (size_t)len);
        NEED(MPI_Sendrecv(out, len, MPI_BYTE, (rank + 1) % size, 1, in, len, MPI_BYTE, (rank + size - 1) % size, 1,
                          MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        for (int i = 0; i < len; i++) {
            if (in[i] != (char)((rank + size - 1) % size + len)) {
                failed("a message came with other bytes");
                break;
            }
        }
    }
    NEED(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    NEED(MPI_Scan(&rank, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    if (sum != size * (size - 1) / 2 || got != rank * (rank + 1) / 2) {
        failed("a reduction came to another result");
    }
}

static void on_signal(int signal) {
    say_where(signal == SIGALRM ? "HANG" : "CRASH", "");
    _exit(signal == SIGALRM ? 98 : 97);
}

/* Called by AddressSanitizer before it reports. */
void __asan_on_error(void);
void __asan_on_error(void) { say_where("CRASH", ""); }

static void topologies(void) {
    int dims = 0, one = 1, size;
    MPI_Comm_size(home, &size);
    MPI_Dims_create(size, 1, &dims);
    int *indx = calloc((size_t)size, sizeof *indx), *edges = calloc((size_t)size, sizeof *edges);
    for (int i = 0; i < size; i++) {
        indx[i] = i + 1;
        edges[i] = i;
    }
    int rank;
    MPI_Comm_rank(home, &rank);
    NEED(MPI_Cart_create(home, 1, &dims, &one, 0, &w.cart));
    NEED(MPI_Graph_create(home, size, indx, edges, 0, &w.graph));
    NEED(MPI_Dist_graph_create_adjacent(home, 1, &rank, MPI_UNWEIGHTED, 1, &rank, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                        &w.dist));
    free(indx);
    free(edges);
}

/* `wrong [FIRST [LAST]]`: from which case on, and before which it ends. */
int main(int argc, char **argv) {
    int first = argc > 1 ? atoi(argv[1]) : 0, last = argc > 2 ? atoi(argv[2]) : INT_MAX;
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    MPI_Init(&argc, &argv);
    sigaltstack(&alternate, NULL);
    sigaction(SIGALRM, &action, NULL);
#ifndef __SANITIZE_ADDRESS__
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGABRT, &action, NULL);
#endif
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    home = MPI_COMM_SELF;
    topologies();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (int which = 0; which < calls[i].cases; which++, at_case++) {
            if (at_case >= first && at_case < last) {
                alarm(30);
                call_name = calls[i].name;
                calls[i].run(which);
            }
        }
    }
    alarm(60);
    traffic();
    MPI_Comm_free(&w.cart);
    MPI_Comm_free(&w.graph);
    MPI_Comm_free(&w.dist);
    printf("tried %d refused %d failed %d\n", tried, refused, failures);
    fflush(stdout);
    MPI_Finalize();
    return failures != 0;
}
