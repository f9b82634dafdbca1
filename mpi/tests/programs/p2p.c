/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Point-to-point communication between two ranks, in every mode. */
#include "check.h"

static int rank, size, peer;

static void modes(void) {
    for (int count = 0; count <= 300000; count = count * 3 + 1) {
        int *out = malloc((count + 1) * sizeof *out), *in = malloc((count + 1) * sizeof *in);
        for (int i = 0; i < count; i++) out[i] = rank * 1000003 + i;
        for (int mode = 0; mode < 4; mode++) {
            memset(in, 0xff, (count + 1) * sizeof *in);
            MPI_Status status;
            MPI_Request request;
            int tag = 100 + mode;
            OK(MPI_Irecv(in, count, MPI_INT, peer, tag, MPI_COMM_WORLD, &request));
            OK(MPI_Barrier == 0 ? 0 : MPI_Sendrecv(NULL, 0, MPI_INT, peer, 1, NULL, 0, MPI_INT, peer, 1,
                                                 MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            MPI_Request sent = MPI_REQUEST_NULL;
            switch (mode) {
            case 0: OK(MPI_Isend(out, count, MPI_INT, peer, tag, MPI_COMM_WORLD, &sent)); break;
            case 1: OK(MPI_Issend(out, count, MPI_INT, peer, tag, MPI_COMM_WORLD, &sent)); break;
            case 2: OK(MPI_Irsend(out, count, MPI_INT, peer, tag, MPI_COMM_WORLD, &sent)); break;
            case 3: OK(MPI_Ibsend(out, count, MPI_INT, peer, tag, MPI_COMM_WORLD, &sent)); break;
            }
            OK(MPI_Wait(&sent, MPI_STATUS_IGNORE));
            CHECK(sent == MPI_REQUEST_NULL);
            OK(MPI_Wait(&request, &status));
            CHECK(request == MPI_REQUEST_NULL);
            CHECK(status.MPI_SOURCE == peer && status.MPI_TAG == tag);
            int got = -1;
            OK(MPI_Get_count(&status, MPI_INT, &got));
            CHECK(got == count);
            for (int i = 0; i < count; i++) CHECK(in[i] == peer * 1000003 + i);
        }
        free(out);
        free(in);
    }
}

static void blocking(void) {
    double value[3] = {rank, rank + 0.5, -1}, got[3];
    MPI_Status status;
    for (int turn = 0; turn < 1000; turn++) {
        if (rank == 0) {
            OK(MPI_Send(value, 3, MPI_DOUBLE, peer, turn, MPI_COMM_WORLD));
            OK(MPI_Recv(got, 3, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
        } else {
            OK(MPI_Recv(got, 3, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
            OK(MPI_Ssend(value, 3, MPI_DOUBLE, peer, turn, MPI_COMM_WORLD));
        }
        CHECK(got[0] == peer && got[1] == peer + 0.5 && status.MPI_TAG == turn);
    }
}

static void persistent(void) {
    int out = 0, in = -1;
    MPI_Request requests[2];
    OK(MPI_Send_init(&out, 1, MPI_INT, peer, 7, MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Recv_init(&in, 1, MPI_INT, peer, 7, MPI_COMM_WORLD, &requests[1]));
    for (int turn = 0; turn < 50; turn++) {
        out = turn * 2 + rank;
        OK(MPI_Startall(2, requests));
        MPI_Status statuses[2];
        OK(MPI_Waitall(2, requests, statuses));
        CHECK(in == turn * 2 + peer && statuses[1].MPI_SOURCE == peer);
        CHECK(requests[0] != MPI_REQUEST_NULL);
        int flag = 0;
        OK(MPI_Test(&requests[1], &flag, &statuses[0]));
        CHECK(flag && statuses[0].MPI_SOURCE == MPI_ANY_SOURCE);
    }
    OK(MPI_Request_free(&requests[0]));
    OK(MPI_Request_free(&requests[1]));
    CHECK(requests[0] == MPI_REQUEST_NULL);
}

static void probes(void) {
    /* Tags of no other test: rank 0 is ahead and sends its messages while rank 1 still looks. */
    enum { TAKEN = 803, LEFT = 804 };
    char text[64] = "a message of some length", got[64];
    MPI_Status status;
    if (rank == 0) {
        OK(MPI_Send(text, 25, MPI_CHAR, peer, TAKEN, MPI_COMM_WORLD));
        OK(MPI_Send(text, 5, MPI_CHAR, peer, LEFT, MPI_COMM_WORLD));
    } else {
        int count;
        MPI_Message message;
        OK(MPI_Probe(MPI_ANY_SOURCE, LEFT, MPI_COMM_WORLD, &status));
        OK(MPI_Get_count(&status, MPI_CHAR, &count));
        CHECK(count == 5);
        OK(MPI_Mprobe(0, TAKEN, MPI_COMM_WORLD, &message, &status));
        OK(MPI_Get_count(&status, MPI_CHAR, &count));
        CHECK(count == 25);
        OK(MPI_Mrecv(got, 25, MPI_CHAR, &message, &status));
        CHECK(strcmp(got, text) == 0 && message == MPI_MESSAGE_NULL);
        int flag = 1;
        OK(MPI_Improbe(0, TAKEN, MPI_COMM_WORLD, &flag, &message, &status));
        CHECK(!flag);
        OK(MPI_Recv(got, 5, MPI_CHAR, 0, LEFT, MPI_COMM_WORLD, &status));
    }
    OK(MPI_Probe(MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status));
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL && status.MPI_TAG == MPI_ANY_TAG);
}

static void many(void) {
    enum { N = 64 };
    int in[N], out[N], left = N, indices[N];
    MPI_Request receives[N], sends[N];
    MPI_Status statuses[N];
    for (int i = 0; i < N; i++) OK(MPI_Irecv(&in[i], 1, MPI_INT, peer, i, MPI_COMM_WORLD, &receives[i]));
    for (int i = N - 1; i >= 0; i--) {
        out[i] = i * 7 + rank;
        OK(MPI_Isend(&out[i], 1, MPI_INT, peer, i, MPI_COMM_WORLD, &sends[i]));
    }
    while (left > 0) {
        int done;
        OK(MPI_Waitsome(N, receives, &done, indices, statuses));
        CHECK(done >= 1);
        for (int i = 0; i < done; i++) CHECK(in[indices[i]] == indices[i] * 7 + peer && statuses[i].MPI_TAG == indices[i]);
        left -= done;
    }
    int done;
    OK(MPI_Waitsome(N, receives, &done, indices, statuses));
    CHECK(done == MPI_UNDEFINED);
    OK(MPI_Waitall(N, sends, MPI_STATUSES_IGNORE));
    int index;
    OK(MPI_Waitany(N, sends, &index, MPI_STATUS_IGNORE));
    CHECK(index == MPI_UNDEFINED);
}

static void cancel(void) {
    int value, flag;
    MPI_Request request;
    MPI_Status status;
    OK(MPI_Irecv(&value, 1, MPI_INT, peer, 999, MPI_COMM_WORLD, &request));
    OK(MPI_Cancel(&request));
    OK(MPI_Wait(&request, &status));
    OK(MPI_Test_cancelled(&status, &flag));
    CHECK(flag);
}

static int taken_back(int turn, int i, int last) { return i % 7 == turn % 7 || (turn == 2 && i == last); }

/* A window of receives of one pattern, some taken back, some too short, for messages of every length; then one of another pattern between them. */
static void windows(void) {
    enum { N = 40, MOST = 300000 };
    static const int lengths[] = {0, 1, 12, 48, 49, 200, 4000, 9000, 70000, MOST};
    enum { LENGTHS = sizeof lengths / sizeof *lengths };
    char *in = malloc((size_t)N * MOST), *out = malloc(MOST);
    MPI_Request receives[N];
    MPI_Status statuses[N];
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    for (int turn = 0; turn < 8; turn++) {
        int sent = 0, any = turn % 4 == 3 ? N / 2 : -1;
        for (int i = 0; i < N; i++) {
            int room = i % 10 == 4 ? 5 : MOST;
            OK(MPI_Irecv(in + (size_t)i * MOST, room, MPI_BYTE, i == any ? MPI_ANY_SOURCE : peer, 77,
                         MPI_COMM_WORLD, &receives[i]));
        }
        for (int i = 0; i < N; i++)
            if (taken_back(turn, i, N - 1)) OK(MPI_Cancel(&receives[i]));
        OK(MPI_Sendrecv(NULL, 0, MPI_BYTE, peer, 1, NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        for (int i = 0; i < N; i++)
            if (!taken_back(turn, i, N - 1)) {
                int length = lengths[(i + turn) % LENGTHS];
                memset(out, i + turn + peer, length);
                OK(MPI_Send(out, length, MPI_BYTE, peer, 77, MPI_COMM_WORLD));
            }
        int failed = MPI_Waitall(N, receives, statuses);
        for (int i = 0; i < N; i++) {
            int length = lengths[(i + turn) % LENGTHS], room = i % 10 == 4 ? 5 : MOST, cancelled, got;
            CHECK(receives[i] == MPI_REQUEST_NULL);
            OK(MPI_Test_cancelled(&statuses[i], &cancelled));
            CHECK(cancelled == taken_back(turn, i, N - 1));
            if (cancelled) continue;
            int class;
            OK(MPI_Error_class(failed == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS, &class));
            CHECK(class == (length > room ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
            if (length > room) continue;
            OK(MPI_Get_count(&statuses[i], MPI_BYTE, &got));
            CHECK(got == length && statuses[i].MPI_SOURCE == peer && statuses[i].MPI_TAG == 77);
            for (int at = 0; at < got; at++) CHECK(in[(size_t)i * MOST + at] == (char)(i + turn + rank));
            sent++;
        }
        CHECK(sent > N / 2);
    }
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    free(in);
    free(out);
}

/* Messages come between the receives of one window, with or without a receive of another tag that waits all the time.
   Each receive gets the one that is its turn. */
static void in_between(MPI_Comm comm) {
    enum { BEFORE = 64, AFTER = 40, LONGEST = 25 };
    static const int lengths[] = {1, 6, 7, LONGEST};
    long in[BEFORE + AFTER][LONGEST], out[LONGEST], go = 0;
    MPI_Request receives[BEFORE + AFTER];
    MPI_Status statuses[BEFORE + AFTER];
    for (int before = 0; before <= BEFORE; before = before * 2 + (before < 2)) {
        for (int turn = 0; turn < 12; turn++) {
            int all = before + AFTER, words = lengths[turn % 4], any = turn / 4 ? before + turn - 6 : -1;
            if (rank == 0) {
                OK(MPI_Recv(&go, 1, MPI_LONG, peer, 5, comm, MPI_STATUS_IGNORE));
                for (int i = 0; i < all; i++) {
                    for (int word = 0; word < words; word++) out[word] = turn * 1000 + i + word;
                    OK(MPI_Send(out, words, MPI_LONG, peer, 6, comm));
                }
                if (turn % 2) OK(MPI_Send(&go, 1, MPI_LONG, peer, 9, comm));
                continue;
            }
            MPI_Request last = MPI_REQUEST_NULL;
            if (turn % 2) OK(MPI_Irecv(&go, 1, MPI_LONG, peer, 9, comm, &last));
            for (int i = 0; i < all; i++) {
                int from = i == any ? MPI_ANY_SOURCE : peer, tag = i == any + 1 && any >= 0 ? MPI_ANY_TAG : 6;
                if (i == before) {
                    OK(MPI_Send(&go, 1, MPI_LONG, peer, 5, comm));
                    for (double end = MPI_Wtime() + 3e-4 * (turn % 3); MPI_Wtime() < end;) continue;
                }
                OK(MPI_Irecv(in[i], words, MPI_LONG, from, tag, comm, &receives[i]));
            }
            OK(MPI_Waitall(all, receives, statuses));
            for (int i = 0; i < all; i++) {
                int got;
                OK(MPI_Get_count(&statuses[i], MPI_LONG, &got));
                CHECK(got == words && statuses[i].MPI_SOURCE == peer && statuses[i].MPI_TAG == 6);
                for (int word = 0; word < words; word++) CHECK(in[i][word] == turn * 1000 + i + word);
            }
            OK(MPI_Wait(&last, MPI_STATUS_IGNORE));
        }
    }
}

/* Every way in which a receive can end: posted before its message comes, or after. */
static void ends(MPI_Comm comm, int late) {
    enum { WAIT, TEST, WAITALL, TESTALL, WAITANY, TESTANY, WAITSOME, TESTSOME, LOOK, FREE, ENDS };
    for (int end = 0; end < ENDS; end++) {
        int out[3] = {rank * 10 + end, rank * 10 + end + 100, rank * 10 + end + 200}, in[3] = {-1, -1, -1};
        int done = 0, flag = 0, index, indices[3], seen = 0;
        MPI_Request sends[3], receives[4];
        MPI_Status statuses[4];
        for (int turn = 0; turn < 2; turn++)
            for (int i = 0; i < 3; i++)
                if (turn == late)
                    OK(MPI_Irecv(&in[i], 1, MPI_INT, i == 2 ? MPI_ANY_SOURCE : peer, i == 1 ? MPI_ANY_TAG : 40 + i, comm, &receives[i]));
                else
                    OK(MPI_Isend(&out[i], 1, MPI_INT, peer, 40 + i, comm, &sends[i]));
        receives[3] = MPI_REQUEST_NULL;
        memset(statuses, 0, sizeof statuses);
        switch (end) {
        case WAIT:
            for (int i = 0; i < 3; i++) OK(MPI_Wait(&receives[i], &statuses[i]));
            break;
        case TEST:
            for (int i = 0; i < 3; i++)
                for (flag = 0; !flag;) OK(MPI_Test(&receives[i], &flag, &statuses[i]));
            break;
        case WAITALL: OK(MPI_Waitall(4, receives, statuses)); break;
        case TESTALL:
            while (!flag) OK(MPI_Testall(4, receives, &flag, statuses));
            break;
        case WAITANY:
        case TESTANY:
            while (seen < 3) {
                MPI_Status status;
                flag = 1;
                if (end == WAITANY)
                    OK(MPI_Waitany(4, receives, &index, &status));
                else
                    OK(MPI_Testany(4, receives, &index, &flag, &status));
                if (flag) {
                    CHECK(index >= 0 && index < 3);
                    statuses[index] = status;
                    seen++;
                }
            }
            break;
        case WAITSOME:
        case TESTSOME:
            while (seen < 3) {
                MPI_Status some[4];
                if (end == WAITSOME)
                    OK(MPI_Waitsome(4, receives, &done, indices, some));
                else
                    OK(MPI_Testsome(4, receives, &done, indices, some));
                for (int i = 0; i < done; i++) statuses[indices[i]] = some[i];
                seen += done;
            }
            break;
        case LOOK:
            for (int i = 0; i < 3; i++) {
                for (flag = 0; !flag;) OK(MPI_Request_get_status(receives[i], &flag, &statuses[i]));
                CHECK(receives[i] != MPI_REQUEST_NULL);
                OK(MPI_Wait(&receives[i], MPI_STATUS_IGNORE));
            }
            break;
        case FREE:
            /* The receive goes on; what is sent after it says that it is over. */
            for (int i = 0; i < 3; i++) OK(MPI_Request_free(&receives[i]));
            OK(MPI_Sendrecv(NULL, 0, MPI_INT, peer, 50, NULL, 0, MPI_INT, peer, 50, comm, MPI_STATUS_IGNORE));
            break;
        }
        for (int i = 0; i < 3; i++) {
            CHECK(receives[i] == MPI_REQUEST_NULL);
            CHECK(in[i] == peer * 10 + end + i * 100);
            if (end != FREE) CHECK(statuses[i].MPI_SOURCE == peer && statuses[i].MPI_TAG == 40 + i);
            if (end != FREE) OK(MPI_Get_count(&statuses[i], MPI_INT, &done));
            if (end != FREE) CHECK(done == 1);
        }
        OK(MPI_Waitall(3, sends, MPI_STATUSES_IGNORE));
    }
}

/* One message of several is too long: each status says how its receive went. */
static void one_of_many_fails(MPI_Comm comm) {
    int out[4] = {1, 2, 3, 4}, in[4];
    MPI_Request requests[4];
    MPI_Status statuses[4];
    MPI_Errhandler before;
    OK(MPI_Comm_get_errhandler(comm, &before));
    OK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    for (int i = 0; i < 3; i++) OK(MPI_Irecv(&in[i], 1, MPI_INT, peer, 60 + i, comm, &requests[i]));
    for (int i = 0; i < 3; i++) OK(MPI_Send(out, i == 1 ? 4 : 1, MPI_INT, peer, 60 + i, comm));
    requests[3] = MPI_REQUEST_NULL;
    for (int i = 0; i < 4; i++) statuses[i].MPI_ERROR = 12345;
    int class, code = MPI_Waitall(4, requests, statuses);
    OK(MPI_Error_class(code, &class));
    CHECK(class == MPI_ERR_IN_STATUS);
    for (int i = 0; i < 3; i++) {
        OK(MPI_Error_class(statuses[i].MPI_ERROR, &class));
        CHECK(class == (i == 1 ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
        CHECK(requests[i] == MPI_REQUEST_NULL && statuses[i].MPI_SOURCE == peer && in[i] == 1);
    }
    OK(MPI_Comm_set_errhandler(comm, before));
    OK(MPI_Errhandler_free(&before));
}

static void exchange(void) {
    int buffer[1000];
    for (int i = 0; i < 1000; i++) buffer[i] = rank * 5000 + i;
    MPI_Status status;
    OK(MPI_Sendrecv_replace(buffer, 1000, MPI_INT, peer, 1, peer, 1, MPI_COMM_WORLD, &status));
    for (int i = 0; i < 1000; i++) CHECK(buffer[i] == peer * 5000 + i);
    MPI_Request request;
    OK(MPI_Isendrecv_replace(buffer, 1000, MPI_INT, peer, 1, peer, 1, MPI_COMM_WORLD, &request));
    OK(MPI_Wait(&request, &status));
    for (int i = 0; i < 1000; i++) CHECK(buffer[i] == rank * 5000 + i);
    CHECK(status.MPI_SOURCE == peer);
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(size == 2);
    peer = 1 - rank;
    int bytes = 4 << 20, detached;
    void *attached = malloc(bytes), *address;
    OK(MPI_Buffer_attach(attached, bytes));
    modes();
    OK(MPI_Buffer_detach(&address, &detached));
    CHECK(address == attached && detached == bytes);
    blocking();
    persistent();
    probes();
    many();
    cancel();
    MPI_Comm other;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &other));
    for (int late = 0; late < 2; late++) {
        ends(MPI_COMM_WORLD, late);
        ends(other, late);
    }
    in_between(MPI_COMM_WORLD);
    in_between(other);
    /* What a message that is too long leaves in its buffer and in the others' statuses differs between libraries. */
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    OK(MPI_Get_library_version(library, &length));
    if (strstr(library, "onecopy")) {
        one_of_many_fails(MPI_COMM_WORLD);
        one_of_many_fails(other);
        windows();
    }
    OK(MPI_Comm_free(&other));
    exchange();
    OK(MPI_Finalize());
    return 0;
}
