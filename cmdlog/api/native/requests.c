/* Steps of the gate in C; `cmdlog.api.native` says which, and the Python beside each caller does the same.
 *
 * `read_call` reads the one form of request that nearly all calls have, whole in one piece. Its grammar is a subset of what llhttp
 * takes, on which no two readers differ: anything else, however legal, is left to the parser. Nothing is refused here.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "strict_json.h"

enum { INTERFACE = 6 }; /* one more with each change that older Python, or newer, does not know */

enum { LINE_DEPTH_MAX = 64 + 2, NAME_BYTES_MAX = 64, LENGTH_DIGITS_MAX = 9, PATH_BYTES_MAX = 256 };
enum { LINE_BYTES_MAX = 16 << 10 }; /* longer ones are read aside: LARGE_BODY_BYTES of `service.py` */

/* -- lines of a batch --------------------------------------------------------------------------------------------------- */

static PyObject *procedure_name, *params_name, *number_name, *bind_name;

/* The number of a parsed line, None where it has none; NULL for a line that says anything else beside its call. Borrowed. */
static PyObject *number_of(PyObject *value)
{
    if (!PyDict_CheckExact(value)) {
        return NULL;
    }
    if (PyDict_GET_SIZE(value) == 2) {
        return Py_None;
    }
    PyObject *number = PyDict_GET_SIZE(value) == 3 ? PyDict_GetItemWithError(value, number_name) : NULL;
    return number != NULL && PyLong_CheckExact(number) ? number : NULL;
}

/* The parameters of a parsed line, bound by the procedure of its route, which goes to `route`. NULL: the Python says why. */
static PyObject *bind_line(PyObject *value, PyObject *routes, PyObject **route)
{
    PyObject *name = PyDict_GetItemWithError(value, procedure_name), *params = PyDict_GetItemWithError(value, params_name);
    if (name == NULL || params == NULL || !PyUnicode_CheckExact(name) || !PyDict_CheckExact(params)) {
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(routes, name);
    if (found == NULL) {
        return NULL;
    }
    *route = Py_NewRef(found);
    PyObject *procedure = PyObject_GetAttr(found, procedure_name);
    PyObject *bind = procedure == NULL ? NULL : PyObject_GetAttr(procedure, bind_name);
    PyObject *bound = bind == NULL ? NULL : PyObject_CallOneArg(bind, params);
    Py_XDECREF(bind);
    Py_XDECREF(procedure);
    return bound;
}

/* (route, bound parameters, number or None) of a line that says nothing else; None for what the Python reads. */
static PyObject *read_line(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "read_line takes a line, a dict of routes, and what parses JSON");
        return NULL;
    }
    if (!PyBytes_CheckExact(args[0]) || PyBytes_GET_SIZE(args[0]) > LINE_BYTES_MAX) {
        Py_RETURN_NONE;
    }
    PyObject *value = PyObject_CallOneArg(args[2], args[0]), *number = NULL, *route = NULL;
    PyObject *bound = NULL, *found = NULL;
    if (value != NULL && examine_json(PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), LINE_DEPTH_MAX, value) == STRICT) {
        number = number_of(value);
        bound = number == NULL ? NULL : bind_line(value, args[1], &route);
    }
    if (bound != NULL) {
        found = PyTuple_Pack(3, route, bound, number);
    } else {
        PyErr_Clear(); /* the Python meets it again, and says it */
        found = Py_NewRef(Py_None);
    }
    Py_XDECREF(bound);
    Py_XDECREF(route);
    Py_XDECREF(value);
    return found;
}

/* -- requests ----------------------------------------------------------------------------------------------------------- */

static const char START[] = "POST /v1/procedures/";
static const char VERSION[] = " HTTP/1.1\r\n";

/* Lower case of a byte that may be in the name of a header; 0 for all others. */
static unsigned char lower_of[256];

static void fill_lower(void)
{
    for (int byte = '0'; byte <= '9'; byte++) {
        lower_of[byte] = (unsigned char)byte;
    }
    for (int byte = 'a'; byte <= 'z'; byte++) {
        lower_of[byte] = lower_of[byte - 'a' + 'A'] = (unsigned char)byte;
    }
    lower_of['-'] = '-';
    lower_of['_'] = '_';
}

/* How a header that is not only carried counts. */
typedef enum { CARRIED, HOST, LENGTH, KEEPS, FORBIDDEN } Meaning;

static int is_named(const char *name, Py_ssize_t length, const char *other)
{
    return (size_t)length == strlen(other) && memcmp(name, other, (size_t)length) == 0;
}

static Meaning meaning_of(const char *name, Py_ssize_t length)
{
    switch (name[0]) {
    case 'h':
        return is_named(name, length, "host") ? HOST : CARRIED;
    case 'c':
        if (is_named(name, length, "content-length")) {
            return LENGTH;
        }
        return is_named(name, length, "connection") ? KEEPS : CARRIED;
    case 'k':
        return is_named(name, length, "keep-alive") ? FORBIDDEN : CARRIED;
    case 'p':
        return is_named(name, length, "proxy-connection") ? FORBIDDEN : CARRIED;
    case 't':
        return is_named(name, length, "transfer-encoding") || is_named(name, length, "te") || is_named(name, length, "trailer")
                   ? FORBIDDEN
                   : CARRIED;
    case 'e':
        return is_named(name, length, "expect") ? FORBIDDEN : CARRIED;
    case 'u':
        return is_named(name, length, "upgrade") ? FORBIDDEN : CARRIED;
    default:
        return CARRIED;
    }
}

/* A length as most clients write it; -1 for any other text. */
static Py_ssize_t length_of(const char *text, Py_ssize_t size)
{
    Py_ssize_t length = 0;
    if (size < 1 || size > LENGTH_DIGITS_MAX || (size > 1 && text[0] == '0')) {
        return -1;
    }
    for (Py_ssize_t at = 0; at < size; at++) {
        if (text[at] < '0' || text[at] > '9') {
            return -1;
        }
        length = 10 * length + (text[at] - '0');
    }
    return length;
}

typedef struct {
    const char *at, *end;    /* what is not read yet */
    char name[NAME_BYTES_MAX]; /* of the header, in lower case */
    Py_ssize_t name_bytes;
    const char *value;
    Py_ssize_t value_bytes;
} Reader;

/* The next header: 1; 0 at the empty line; -1 for what the parser must read. */
static int next_header(Reader *reader)
{
    const char *at = reader->at, *end = reader->end;
    if (end - at >= 2 && at[0] == '\r' && at[1] == '\n') {
        reader->at = at + 2;
        return 0;
    }
    Py_ssize_t size = 0;
    for (; at < end && lower_of[(unsigned char)*at] != 0; at++) {
        if (size == NAME_BYTES_MAX) {
            return -1;
        }
        reader->name[size++] = (char)lower_of[(unsigned char)*at];
    }
    if (size == 0 || at == end || *at != ':') {
        return -1;
    }
    at++;
    while (at < end && *at == ' ') {
        at++;
    }
    const char *begin = at;
    while (at < end && (unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f) {
        at++;
    }
    if (end - at < 2 || at[0] != '\r' || at[1] != '\n') {
        return -1;
    }
    reader->at = at + 2;
    while (at > begin && at[-1] == ' ') {
        at--;
    }
    reader->name_bytes = size;
    reader->value = begin;
    reader->value_bytes = at - begin;
    return 1;
}

/* Puts the header among those that are read, if it is one. 1; 0: came before; -1: an exception. */
static int carry_header(const Reader *reader, PyObject *read, PyObject *picked)
{
    PyObject *name = PyBytes_FromStringAndSize(reader->name, reader->name_bytes);
    int wanted = name == NULL ? -1 : PySet_Contains(read, name);
    int done = wanted < 0 ? -1 : 1;
    if (wanted == 1) {
        PyObject *value = PyBytes_FromStringAndSize(reader->value, reader->value_bytes);
        Py_ssize_t before = PyDict_GET_SIZE(picked);
        if (value == NULL || PyDict_SetItem(picked, name, value) < 0) {
            done = -1;
        } else if (PyDict_GET_SIZE(picked) == before) {
            done = 0;
        }
        Py_XDECREF(value);
    }
    Py_XDECREF(name);
    return done;
}

/* Reads the headers into `picked`; the length of the body, -1 for what the parser must read, -2 with an exception. */
static Py_ssize_t read_headers(Reader *reader, PyObject *read, PyObject *picked, Py_ssize_t headers_max)
{
    Py_ssize_t length = -1, count = 0;
    int hosts = 0, more;
    while ((more = next_header(reader)) == 1) {
        Meaning meaning = meaning_of(reader->name, reader->name_bytes);
        if (++count > headers_max || meaning == FORBIDDEN || (meaning == LENGTH && length >= 0)) {
            return -1;
        }
        if (meaning == LENGTH && (length = length_of(reader->value, reader->value_bytes)) < 0) {
            return -1;
        }
        if (meaning == KEEPS &&
            (reader->value_bytes != 10 || PyOS_strnicmp(reader->value, "keep-alive", reader->value_bytes) != 0)) {
            return -1;
        }
        hosts += meaning == HOST;
        if (meaning == CARRIED || meaning == HOST) {
            int carried = carry_header(reader, read, picked);
            if (carried <= 0) {
                return carried - 1;
            }
        }
    }
    return more == 0 && hosts == 1 ? length : -1;
}

/* (path, picked headers, body) of a call that is there as a whole and nothing after it; None for all else. */
static PyObject *read_call(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyBytes_Check(args[0]) || !PyAnySet_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "read_call takes bytes, two limits, and a set of names");
        return NULL;
    }
    Py_ssize_t head_bytes_max = PyLong_AsSsize_t(args[1]), headers_max = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    const char *data = PyBytes_AS_STRING(args[0]), *end = data + PyBytes_GET_SIZE(args[0]);
    const Py_ssize_t start = sizeof(START) - 1, version = sizeof(VERSION) - 1;
    if (end - data < start + version || memcmp(data, START, (size_t)start) != 0) {
        Py_RETURN_NONE;
    }
    const char *at = data + start;
    while (at < end && lower_of[(unsigned char)*at] != 0) {
        at++;
    }
    if (end - at < version || memcmp(at, VERSION, (size_t)version) != 0) {
        Py_RETURN_NONE;
    }
    Py_ssize_t path_bytes = at - data - 5; /* after `POST ` */
    if (path_bytes > PATH_BYTES_MAX) {
        Py_RETURN_NONE;
    }
    Reader reader = {.at = at + version, .end = end};
    PyObject *picked = PyDict_New();
    Py_ssize_t length = picked == NULL ? -2 : read_headers(&reader, args[3], picked, headers_max);
    PyObject *found = NULL;
    if (length >= 0 && reader.at - data <= head_bytes_max && end - reader.at == length) {
        found = Py_BuildValue("(s#Oy#)", data + 5, path_bytes, picked, reader.at, length);
    } else if (length >= -1) {
        found = Py_NewRef(Py_None);
    }
    Py_XDECREF(picked);
    return found;
}

static PyMethodDef methods[] = {
    {"examine_json", (PyCFunction)(void (*)(void))module_examine_json, METH_FASTCALL,
     "Whether a JSON text means its value alone: 0, or which flaw it has."},
    {"split_json", (PyCFunction)(void (*)(void))module_split_json, METH_FASTCALL,
     "Where the content of a JSON container may be cut."},
    {"read_line", (PyCFunction)(void (*)(void))read_line, METH_FASTCALL,
     "(route, bound parameters, number or None) of a line of a batch; None for what the Python must read."},
    {"read_call", (PyCFunction)(void (*)(void))read_call, METH_FASTCALL,
     "(path, headers, body) of a call that is all there; None for what the parser must read."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cmdlog.api.native.requests",
    .m_doc = "Steps of the gate in C.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_requests(void)
{
    fill_lower();
    procedure_name = PyUnicode_InternFromString("procedure");
    params_name = PyUnicode_InternFromString("params");
    number_name = PyUnicode_InternFromString("number");
    bind_name = PyUnicode_InternFromString("bind");
    if (number_name == NULL || procedure_name == NULL || params_name == NULL || bind_name == NULL) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
