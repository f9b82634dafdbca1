/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Attributes: when their functions are called, with what, and what a failing one leaves. */
#include "check.h"

enum { MOST = 32 };
static struct {
    int copies, deletes;
    /* Values in the order of their deletion. */
    long deleted[MOST];
    int fail;
} seen;

static void reset(void) {
    memset(&seen, 0, sizeof seen);
}

static void forget(void *value, void *extra) {
    CHECK(extra == &seen && seen.deletes < MOST);
    seen.deleted[seen.deletes++] = (long)value;
}

static int copy_comm(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    CHECK(comm != MPI_COMM_NULL && key != MPI_KEYVAL_INVALID && extra == &seen);
    if (seen.fail) return seen.fail;
    seen.copies++;
    *(void **)out = (char *)in + 100;
    *flag = 1;
    return MPI_SUCCESS;
}

static int delete_comm(MPI_Comm comm, int key, void *value, void *extra) {
    int size, there;
    void *found;
    /* The object and its attribute are still there. */
    OK(MPI_Comm_size(comm, &size));
    OK(MPI_Comm_get_attr(comm, key, &found, &there));
    CHECK(there && found == value);
    if (seen.fail) return seen.fail;
    forget(value, extra);
    return MPI_SUCCESS;
}

static int copy_type(MPI_Datatype type, int key, void *extra, void *in, void *out, int *flag) {
    CHECK(type != MPI_DATATYPE_NULL && key != MPI_KEYVAL_INVALID && extra == &seen);
    if (seen.fail) return seen.fail;
    seen.copies++;
    *(void **)out = in;
    *flag = (long)in % 2 == 0;
    return MPI_SUCCESS;
}

static int delete_type(MPI_Datatype type, int key, void *value, void *extra) {
    int size, there;
    void *found;
    OK(MPI_Type_size(type, &size));
    OK(MPI_Type_get_attr(type, key, &found, &there));
    CHECK(there && found == value);
    if (seen.fail) return seen.fail;
    forget(value, extra);
    return MPI_SUCCESS;
}

static long value_of(MPI_Comm comm, int key) {
    void *value = NULL;
    int there;
    OK(MPI_Comm_get_attr(comm, key, &value, &there));
    return there ? (long)value : -1;
}

/* A freed key is usable for as long as an attribute has it, and no longer. */
static void freed_keys(void) {
    int key, kept;
    MPI_Comm a, b;
    reset();
    OK(MPI_Comm_create_keyval(copy_comm, delete_comm, &key, &seen));
    kept = key;
    OK(MPI_Comm_dup(MPI_COMM_SELF, &a));
    OK(MPI_Comm_set_attr(a, key, (void *)1));
    OK(MPI_Comm_free_keyval(&key));
    CHECK(key == MPI_KEYVAL_INVALID && seen.deletes == 0);
    CHECK(value_of(a, kept) == 1);
    OK(MPI_Comm_dup(a, &b));
    CHECK(seen.copies == 1 && value_of(b, kept) == 101);
    OK(MPI_Comm_set_attr(b, kept, (void *)7));
    CHECK(seen.deletes == 1 && seen.deleted[0] == 101);
    OK(MPI_Comm_delete_attr(a, kept));
    CHECK(seen.deletes == 2 && seen.deleted[1] == 1);
    /* Another copy of its number may be freed as well. */
    key = kept;
    OK(MPI_Comm_free_keyval(&key));
    CHECK(key == MPI_KEYVAL_INVALID && value_of(b, kept) == 7);
    OK(MPI_Comm_free(&b));
    CHECK(seen.deletes == 3 && seen.deleted[2] == 7);
    void *value;
    int there;
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_get_attr(a, kept, &value, &there));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_set_attr(a, kept, NULL));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_delete_attr(a, kept));
    key = kept;
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_free_keyval(&key));
    OK(MPI_Comm_free(&a));
}

/* Values go in the reverse order of their setting; one that was deleted or overwritten goes once.
   */
static void order(void) {
    int keys[3];
    MPI_Comm comm;
    reset();
    for (int i = 0; i < 3; i++)
        OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_comm, &keys[i], &seen));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
    for (int i = 0; i < 3; i++) OK(MPI_Comm_set_attr(comm, keys[i], (void *)(long)(10 + i)));
    OK(MPI_Comm_disconnect(&comm));
    CHECK(comm == MPI_COMM_NULL && seen.deletes == 3);
    for (int i = 0; i < 3; i++) CHECK(seen.deleted[i] == 12 - i);
    /* Without functions nothing is called, and MPI_COMM_DUP_FN copies what is there. */
    int plain;
    MPI_Comm copy;
    OK(MPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, &plain, NULL));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
    OK(MPI_Comm_set_attr(comm, keys[0], (void *)1));
    OK(MPI_Comm_set_attr(comm, plain, (void *)2));
    MPI_Request request;
    OK(MPI_Comm_idup(comm, &copy, &request));
    /* What is set after the call is not copied. */
    OK(MPI_Comm_set_attr(comm, plain, (void *)3));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(value_of(copy, plain) == 2 && value_of(copy, keys[0]) == -1);
    OK(MPI_Comm_free(&copy));
    CHECK(seen.deletes == 3);
    OK(MPI_Comm_free(&comm));
    CHECK(seen.deletes == 4);
    OK(MPI_Comm_free_keyval(&plain));
    for (int i = 0; i < 3; i++) OK(MPI_Comm_free_keyval(&keys[i]));
}

/* A function that fails leaves everything as it was, and its code is returned. */
static void failures(void) {
    int key, class, code;
    MPI_Comm comm, same, copy = MPI_COMM_SELF;
    reset();
    OK(MPI_Add_error_class(&class));
    OK(MPI_Add_error_code(class, &code));
    OK(MPI_Comm_create_keyval(copy_comm, delete_comm, &key, &seen));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
    OK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_attr(comm, key, (void *)5));
    seen.fail = code;
    CHECK(MPI_Comm_delete_attr(comm, key) == code && value_of(comm, key) == 5);
    CHECK(MPI_Comm_set_attr(comm, key, (void *)6) == code && value_of(comm, key) == 5);
    CHECK(MPI_Comm_dup(comm, &copy) == code && copy == MPI_COMM_NULL);
    same = comm;
    CHECK(MPI_Comm_free(&comm) == code && comm == same && value_of(comm, key) == 5);
    seen.fail = MPI_SUCCESS;
    OK(MPI_Comm_free(&comm));
    CHECK(seen.deletes == 1 && seen.copies == 0);
    OK(MPI_Comm_free_keyval(&key));

    MPI_Datatype type, twin = MPI_INT;
    OK(MPI_Type_create_keyval(copy_type, delete_type, &key, &seen));
    OK(MPI_Type_contiguous(3, MPI_INT, &type));
    OK(MPI_Type_set_attr(type, key, (void *)8));
    seen.fail = code;
    CHECK(MPI_Type_delete_attr(type, key) == code);
    CHECK(MPI_Type_set_attr(type, key, (void *)6) == code);
    CHECK(MPI_Type_dup(type, &twin) == code && twin == MPI_DATATYPE_NULL);
    CHECK(MPI_Type_free(&type) == code && type != MPI_DATATYPE_NULL);
    seen.fail = MPI_SUCCESS;
    OK(MPI_Type_free(&type));
    CHECK(seen.deletes == 2 && seen.deleted[1] == 8);
    OK(MPI_Type_free_keyval(&key));
}

/* A function that deletes, sets or frees what is being deleted is told so; everything goes on as if it had not tried. */
static int tries;

static int meddle(MPI_Comm comm, int key, void *value, void *extra) {
    MPI_Comm same = comm;
    CHECK(value_of(comm, key) == (long)value);
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_delete_attr(comm, key));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_set_attr(comm, key, (void *)77));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_free(&same));
    CHECK(value_of(comm, key) == (long)value && extra == &tries);
    return tries++ == 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
}

static void meddlers(void) {
    int key, there;
    void *value;
    MPI_Comm comm;
    tries = 0;
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, meddle, &key, &tries));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
    OK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_attr(comm, key, (void *)5));
    RAISES(MPI_ERR_OTHER, MPI_Comm_delete_attr(comm, key));
    CHECK(value_of(comm, key) == 5);
    OK(MPI_Comm_set_attr(comm, key, (void *)6));
    OK(MPI_Comm_delete_attr(comm, key));
    OK(MPI_Comm_get_attr(comm, key, &value, &there));
    CHECK(!there && tries == 3);
    OK(MPI_Comm_set_attr(comm, key, (void *)7));
    OK(MPI_Comm_free(&comm));
    CHECK(tries == 4);
    OK(MPI_Comm_free_keyval(&key));
}

/* A type's attributes go when the program frees it, whatever was made of it. */
static void types(void) {
    int key, there, n[3], combiner, kept;
    void *value;
    MPI_Datatype type, twin, row, part;
    reset();
    OK(MPI_Type_create_keyval(copy_type, delete_type, &key, &seen));
    kept = key;
    OK(MPI_Type_vector(2, 1, 2, MPI_INT, &type));
    OK(MPI_Type_set_attr(type, key, (void *)4));
    OK(MPI_Type_dup(type, &twin));
    CHECK(seen.copies == 1);
    OK(MPI_Type_get_attr(twin, key, &value, &there));
    CHECK(there && value == (void *)4);
    OK(MPI_Type_contiguous(2, type, &row));
    OK(MPI_Type_get_attr(row, key, &value, &there));
    CHECK(!there);
    OK(MPI_Type_free_keyval(&key));
    OK(MPI_Type_free(&type));
    CHECK(seen.deletes == 1 && seen.deleted[0] == 4);
    /* What it was made of is told as a type of its own, whose end is no other's. */
    OK(MPI_Type_get_envelope(row, &n[0], &n[1], &n[2], &combiner));
    CHECK(combiner == MPI_COMBINER_CONTIGUOUS && n[0] == 1 && n[1] == 0 && n[2] == 1);
    int count;
    OK(MPI_Type_get_contents(row, 1, 0, 1, &count, NULL, &part));
    CHECK(count == 2 && part != row);
    OK(MPI_Type_get_envelope(part, &n[0], &n[1], &n[2], &combiner));
    CHECK(combiner == MPI_COMBINER_VECTOR);
    OK(MPI_Type_free(&part));
    CHECK(seen.deletes == 1);
    OK(MPI_Type_set_attr(twin, kept, (void *)3));
    CHECK(seen.deletes == 2);
    OK(MPI_Type_free(&row));
    OK(MPI_Type_free(&twin));
    CHECK(seen.deletes == 3 && seen.deleted[2] == 3);
    /* Predefined types carry attributes, too; a copy that is not wanted is not kept. */
    OK(MPI_Type_create_keyval(copy_type, delete_type, &key, &seen));
    OK(MPI_Type_set_attr(MPI_INT, key, (void *)9));
    OK(MPI_Type_dup(MPI_INT, &twin));
    OK(MPI_Type_get_attr(twin, key, &value, &there));
    CHECK(!there);
    OK(MPI_Type_free(&twin));
    OK(MPI_Type_delete_attr(MPI_INT, key));
    CHECK(seen.deletes == 4 && seen.copies == 2);
    OK(MPI_Type_free_keyval(&key));
}

/* A key belongs to one kind of object. */
static void kinds(void) {
    int of_comm, of_type, there;
    void *value;
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &of_comm, NULL));
    OK(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &of_type, NULL));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_set_attr(MPI_COMM_SELF, of_type, NULL));
    RAISES(MPI_ERR_KEYVAL, MPI_Type_set_attr(MPI_INT, of_comm, NULL));
    RAISES(MPI_ERR_KEYVAL, MPI_Type_get_attr(MPI_INT, of_comm, &value, &there));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_set_attr(MPI_COMM_SELF, MPI_KEYVAL_INVALID, NULL));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_set_attr(MPI_COMM_SELF, MPI_TAG_UB, NULL));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_delete_attr(MPI_COMM_SELF, MPI_TAG_UB));
    int wrong = of_comm, tag_ub = MPI_TAG_UB;
    RAISES(MPI_ERR_KEYVAL, MPI_Type_free_keyval(&wrong));
    RAISES(MPI_ERR_KEYVAL, MPI_Comm_free_keyval(&tag_ub));
    OK(MPI_Comm_free_keyval(&of_comm));
    OK(MPI_Type_free_keyval(&of_type));
}

static void predefined(void) {
    int there, size, *value;
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &value, &there));
    CHECK(!there || *value >= size);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &value, &there));
    CHECK(!there || *value >= 0);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_WTIME_IS_GLOBAL, &value, &there));
    CHECK(there && (*value == 0 || *value == 1));
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_IO, &value, &there));
    CHECK(there);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_LASTUSEDCODE, &value, &there));
    CHECK(there && *value >= MPI_ERR_LASTCODE);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &there));
    CHECK(there && *value >= 32767);
    /* The largest tag works. */
    int out = 5, in = 0;
    OK(MPI_Sendrecv(&out, 1, MPI_INT, 0, *value, &in, 1, MPI_INT, 0, *value, MPI_COMM_SELF,
        MPI_STATUS_IGNORE));
    CHECK(in == 5);
}

static int order_at_end;

static int delete_at_end(MPI_Comm comm, int key, void *value, void *extra) {
    (void)key, (void)extra;
    int over, out = 3, in = 0;
    OK(MPI_Finalized(&over));
    CHECK(!over && comm == MPI_COMM_SELF && (long)value == order_at_end);
    OK(MPI_Sendrecv(&out, 1, MPI_INT, 0, 1, &in, 1, MPI_INT, 0, 1, comm, MPI_STATUS_IGNORE));
    CHECK(in == 3);
    order_at_end--;
    return MPI_SUCCESS;
}

static int delete_of_world(MPI_Comm comm, int key, void *value, void *extra) {
    (void)key, (void)value;
    CHECK(comm == MPI_COMM_WORLD);
    ++*(int *)extra;
    return MPI_SUCCESS;
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    freed_keys();
    order();
    failures();
    meddlers();
    types();
    kinds();
    predefined();
    int key, worlds = 0;
    for (order_at_end = 0; order_at_end < 4; order_at_end++) {
        OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_at_end, &key, NULL));
        OK(MPI_Comm_set_attr(MPI_COMM_SELF, key, (void *)(long)(order_at_end + 1)));
        OK(MPI_Comm_free_keyval(&key));
    }
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_of_world, &key, &worlds));
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, key, NULL));
    OK(MPI_Finalize());
    if (order_at_end != 0 || worlds != 1) {
        fprintf(stderr, "%d attributes of MPI_COMM_SELF left, %d of MPI_COMM_WORLD gone\n",
            order_at_end, worlds);
        return 1;
    }
    return 0;
}
