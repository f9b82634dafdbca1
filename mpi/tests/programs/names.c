/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Strings of the program are bytes: they come back as they were given, in whatever encoding, and are cut where they are too long. */
#include "check.h"

#include <stddef.h>

/* Bytes that are no UTF-8: a lone continuation, a lead without its tail, an overlong zero, a surrogate, Latin-1. */
static const char strange[] = "a\x80"
                              "b\xe2\x82"
                              "c\xc0\x80"
                              "d\xed\xa0\x80"
                              "e\xff\xfe gr\xfc\xdf";

/* `len` bytes that end in the middle of a character, wherever they are cut: all of them have four bytes. */
static char *long_text(size_t shift, size_t len) {
    static char text[1 << 16];
    CHECK(shift + len + 1 < sizeof text);
    memset(text, 'x', shift);
    for (size_t at = 0; at < len; at++) text[shift + at] = "\xf0\x9f\x8c\x8d"[at % 4];
    text[shift + len] = 0;
    return text;
}

#define NAMES(object, set, get)                                                                    \
    do {                                                                                           \
        char got[MPI_MAX_OBJECT_NAME + 8];                                                         \
        int len;                                                                                   \
        OK(set(object, strange));                                                                  \
        OK(get(object, got, &len));                                                                \
        CHECK(len == (int)strlen(strange) && !strcmp(got, strange));                               \
        for (size_t shift = 0; shift < 4; shift++) {                                               \
            const char *text = long_text(shift, 1000);                                             \
            OK(set(object, text));                                                                 \
            memset(got, 0x7e, sizeof got);                                                         \
            OK(get(object, got, &len));                                                            \
            CHECK(len == MPI_MAX_OBJECT_NAME - 1 && got[len] == 0 && got[len + 1] == 0x7e);        \
            CHECK(!memcmp(got, text, len));                                                        \
        }                                                                                          \
        OK(set(object, ""));                                                                       \
        OK(get(object, got, &len));                                                                \
        CHECK(len == 0 && got[0] == 0);                                                            \
    } while (0)

int main(int argc, char **argv) {
    char text[MPI_MAX_ERROR_STRING + MPI_MAX_INFO_VAL], key[MPI_MAX_INFO_KEY];
    int code, len, flag, count;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI_Comm dup;
    MPI_Datatype type;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    OK(MPI_Type_contiguous(3, MPI_INT, &type));
    NAMES(dup, MPI_Comm_set_name, MPI_Comm_get_name);
    NAMES(MPI_COMM_WORLD, MPI_Comm_set_name, MPI_Comm_get_name);
    NAMES(type, MPI_Type_set_name, MPI_Type_get_name);
    NAMES(MPI_INT, MPI_Type_set_name, MPI_Type_get_name);

    /* Keys and values, cut by the room that the program has. */
    MPI_Info info, copy, env;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, strange, strange));
    OK(MPI_Info_set(info, "long", long_text(1, MPI_MAX_INFO_VAL - 2)));
    CHECK(MPI_Info_set(info, "too long", long_text(1, MPI_MAX_INFO_VAL - 1)) != MPI_SUCCESS);
    CHECK(MPI_Info_set(info, long_text(1, MPI_MAX_INFO_KEY - 1), "value") != MPI_SUCCESS);
    OK(MPI_Info_set(info, long_text(2, MPI_MAX_INFO_KEY - 3), "value"));
    CHECK(MPI_Info_delete(info, "\xff\xfe") != MPI_SUCCESS);
    OK(MPI_Info_dup(info, &copy));
    OK(MPI_Info_get_nthkey(copy, 0, key));
    CHECK(!strcmp(key, strange));
    OK(MPI_Info_get_valuelen(copy, strange, &len, &flag));
    CHECK(flag && len == (int)strlen(strange));
    for (int room = 1; room < 20; room++) {
        memset(text, 0x7e, sizeof text);
        OK(MPI_Info_get(copy, "long", room, text, &flag));
        CHECK(flag && !memcmp(text, long_text(1, 100), room) && text[room] == 0 && text[room + 1] == 0x7e);
        len = room;
        memset(text, 0x7e, sizeof text);
        OK(MPI_Info_get_string(copy, "long", &len, text, &flag));
        CHECK(flag && len == MPI_MAX_INFO_VAL && text[room - 1] == 0 && text[room] == 0x7e);
    }
    OK(MPI_Comm_set_info(dup, copy));
    OK(MPI_Info_free(&info));
    OK(MPI_Comm_get_info(dup, &info));
    OK(MPI_Info_get(info, strange, 100, text, &flag));
    CHECK(flag && !strcmp(text, strange));
    OK(MPI_Info_free(&info));
    OK(MPI_Info_free(&copy));

    /* What the command was: the test gives an argument that is no UTF-8. */
    OK(MPI_Info_create_env(argc, argv, &env));
    OK(MPI_Info_get_nkeys(env, &count));
    CHECK(count > 0);
    OK(MPI_Info_get(env, "argv", MPI_MAX_INFO_VAL - 1, text, &flag));
    CHECK(flag == (argc > 1) && (!flag || !strcmp(text, argv[1])));
    OK(MPI_Info_get(MPI_INFO_ENV, "command", MPI_MAX_INFO_VAL - 1, text, &flag));
    CHECK(flag && !strcmp(text, argv[0]));
    OK(MPI_Info_free(&env));

    /* Words of errors. */
    OK(MPI_Add_error_code(MPI_ERR_OTHER, &code));
    OK(MPI_Add_error_string(code, strange));
    OK(MPI_Error_string(code, text, &len));
    CHECK(!strcmp(text, strange) && len == (int)strlen(strange));
    OK(MPI_Add_error_string(code, long_text(3, MPI_MAX_ERROR_STRING - 4)));
    OK(MPI_Error_string(code, text, &len));
    CHECK(len == MPI_MAX_ERROR_STRING - 1 && !strcmp(text, long_text(3, MPI_MAX_ERROR_STRING - 4)));
    CHECK(MPI_Add_error_string(code, long_text(3, MPI_MAX_ERROR_STRING - 3)) != MPI_SUCCESS);

    /* Names that are looked at. */
    MPI_Aint size = 0;
    CHECK(MPI_Pack_external_size("\xff\xfe", 1, MPI_INT, &size) != MPI_SUCCESS);
    OK(MPI_Pack_external_size("external32", 1, MPI_INT, &size));
    CHECK(size == 4);
    OK(MPI_Type_free(&type));
    OK(MPI_Comm_free(&dup));
    OK(MPI_Finalize());
    return 0;
}
