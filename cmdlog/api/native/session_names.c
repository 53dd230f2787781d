/* The header of a session's call, of the form that clients send: `<uuid>; number=17; floor=12`.
 *
 * What is written otherwise, or names a session that was not met lately, or a number outside its window, is left to the Python of
 * `gate/session_numbers.py`, which says what is wrong with it. Nothing is refused here.
 */
#include "session_names.h"

#include <stdint.h>
#include <string.h>

enum { UUID_BYTES = 36, SESSION_BYTES = 16, NAME_BYTES = 32, DIGITS_MAX = 18 };

static const char NUMBER[] = "number=", FLOOR[] = "floor=";

/* Passes `; name=` and a whole number; whether it is there. */
static int pass_member(const char **at, const char *end, const char *name, uint64_t *value)
{
    const char *p = *at;
    size_t bytes = strlen(name);
    if (p == end || *p++ != ';') {
        return 0;
    }
    while (p < end && (*p == ' ' || *p == '\t')) {
        p++;
    }
    if ((size_t)(end - p) <= bytes || memcmp(p, name, bytes) != 0) {
        return 0;
    }
    p += bytes;
    const char *first = p;
    uint64_t read = 0;
    while (p < end && *p >= '0' && *p <= '9') {
        read = 10 * read + (uint64_t)(*p++ - '0');
        if (p - first > DIGITS_MAX) {
            return 0;
        }
    }
    *at = p;
    *value = read;
    return p > first;
}

static void put_number(char *to, uint64_t value)
{
    for (int at = 0; at < 8; at++) {
        to[at] = (char)(value >> 8 * at);
    }
}

/* Session, number and floor in 32 bytes; None for what the Python must read. */
PyObject *name_session_call(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_Check(args[0]) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "name_session_call takes bytes, a dictionary, and a limit");
        return NULL;
    }
    long long window = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    const char *at = PyBytes_AS_STRING(args[0]), *end = at + PyBytes_GET_SIZE(args[0]);
    if (end - at < UUID_BYTES) {
        Py_RETURN_NONE;
    }
    PyObject *uuid = PyBytes_FromStringAndSize(at, UUID_BYTES);
    if (uuid == NULL) {
        return NULL;
    }
    PyObject *session = PyDict_GetItemWithError(args[1], uuid); /* borrowed: nobody changes the dictionary meanwhile */
    Py_DECREF(uuid);
    if (session == NULL) {
        if (PyErr_Occurred()) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    uint64_t number, floor = 0;
    at += UUID_BYTES;
    if (!PyBytes_Check(session) || PyBytes_GET_SIZE(session) != SESSION_BYTES || !pass_member(&at, end, NUMBER, &number) ||
        (at < end && !pass_member(&at, end, FLOOR, &floor)) || at != end) {
        Py_RETURN_NONE;
    }
    if (number <= floor || window < 0 || number - floor > (uint64_t)window) {
        Py_RETURN_NONE;
    }
    PyObject *name = PyBytes_FromStringAndSize(NULL, NAME_BYTES);
    if (name != NULL) {
        char *to = PyBytes_AS_STRING(name);
        memcpy(to, PyBytes_AS_STRING(session), SESSION_BYTES);
        put_number(to + SESSION_BYTES, number);
        put_number(to + SESSION_BYTES + 8, floor);
    }
    return name;
}
