/* Strict JSON: whether a text that orjson has parsed means its value alone. One pass over the bytes, one over the value.
 *
 * orjson has checked the grammar, UTF-8 and surrogates, and refused numbers that overflow. What it takes silently is found here:
 *
 *     repeated keys      each member has one `:` outside of strings; equal keys leave fewer members in the value
 *     large integers     a number without fraction and exponent, by its digits
 *     U+0000             can only be written `\u0000`
 *     depth, long numbers
 *
 * The text may be the beginning of one, or no JSON at all: nothing is read past its end, and only `depth_max` is then of use.
 * `gate/strict_json.py` has the same in Python.
 */
#include "strict_json.h"

#include <string.h>

enum { NUMBER_CHARS_MAX = 1024, INTEGER_DIGITS_MAX = 19 };

static const char GREATEST[] = "9223372036854775807", LEAST[] = "9223372036854775808";

/* The end of a string whose first byte after the quote is `at`; NULL when it has a NUL. */
static const char *pass_string(const char *at, const char *end)
{
    while (at < end && *at != '"') {
        if (*at != '\\') {
            at++;
        } else if (end - at >= 6 && memcmp(at + 1, "u0000", 5) == 0) {
            return NULL;
        } else {
            at += 2;
        }
    }
    return at < end ? at + 1 : end;
}

/* The end of a number; `flaw` is set when it has one. */
static const char *pass_number(const char *at, const char *end, int *flaw)
{
    const char *start = at, *digits = at + (*at == '-');
    int whole = 1;
    for (at++; at < end; at++) {
        if (*at == '.' || *at == 'e' || *at == 'E') {
            whole = 0;
        } else if (!(*at >= '0' && *at <= '9') && *at != '+' && *at != '-') {
            break;
        }
    }
    if (!whole) {
        *flaw = at - start > NUMBER_CHARS_MAX ? LONG_NUMBER : STRICT;
    } else if (at - digits >= INTEGER_DIGITS_MAX) {
        int over = at - digits > INTEGER_DIGITS_MAX || memcmp(digits, *start == '-' ? LEAST : GREATEST, INTEGER_DIGITS_MAX) > 0;
        *flaw = over ? LARGE_INTEGER : STRICT;
    }
    return at;
}

/* How many members the objects of a text have, as it is written; less than 0: a flaw. */
static Py_ssize_t members_written(const char *at, const char *end, int depth_max)
{
    Py_ssize_t members = 0;
    int depth = 0, flaw = STRICT;
    while (at < end) {
        switch (*at) {
        case '"':
            if ((at = pass_string(at + 1, end)) == NULL) {
                return NUL_CHARACTER;
            }
            break;
        case '[':
        case '{':
            if (++depth > depth_max) {
                return TOO_DEEP;
            }
            at++;
            break;
        case ']':
        case '}':
            depth--;
            at++;
            break;
        case ':':
            members++;
            at++;
            break;
        case '-':
        case '0' ... '9':
            at = pass_number(at, end, &flaw);
            if (flaw != STRICT) {
                return flaw;
            }
            break;
        default:
            at++;
        }
    }
    return members;
}

/* How many members the objects of a value have. Its depth is known to have a limit. */
static Py_ssize_t members_held(PyObject *value)
{
    Py_ssize_t members = 0, at = 0;
    PyObject *key, *inner;
    if (PyDict_CheckExact(value)) {
        members = PyDict_GET_SIZE(value);
        while (PyDict_Next(value, &at, &key, &inner)) {
            members += members_held(inner);
        }
    } else if (PyList_CheckExact(value)) {
        for (; at < PyList_GET_SIZE(value); at++) {
            members += members_held(PyList_GET_ITEM(value, at));
        }
    }
    return members;
}

/* STRICT or the flaw of a text; `value` is what orjson made of it, NULL where that is nothing. */
int examine_json(const char *text, Py_ssize_t size, int depth_max, PyObject *value)
{
    Py_ssize_t members = members_written(text, text + size, depth_max);
    if (members < 0) {
        return (int)members;
    }
    return value == NULL || members_held(value) == members ? STRICT : REPEATED_KEY;
}

PyObject *module_examine_json(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count < 2 || count > 3 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "examine_json takes bytes, a limit, and maybe what was parsed");
        return NULL;
    }
    int depth_max = PyLong_AsLong(args[1]), flaw;
    if (depth_max == -1 && PyErr_Occurred()) {
        return NULL;
    }
    const char *text = PyBytes_AS_STRING(args[0]);
    const Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    if (count == 3) {
        flaw = examine_json(text, size, depth_max, args[2]);
    } else {
        Py_BEGIN_ALLOW_THREADS /* a long text: others run meanwhile */
        flaw = examine_json(text, size, depth_max, NULL);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromLong(flaw);
}

/* The commas between the elements of a container's content, at least `piece` bytes after the one before. Into `cuts`, which has
 * room for one in `piece` bytes. How many; -1: brackets do not match, in number. */
static Py_ssize_t find_cuts(const char *text, const char *end, Py_ssize_t piece, Py_ssize_t *cuts)
{
    Py_ssize_t found = 0, depth = 0;
    const char *at = text, *last = text;
    while (at < end) {
        switch (*at) {
        case '"':
            for (at++; at < end && *at != '"'; at++) {
                at += *at == '\\';
            }
            break;
        case '[':
        case '{':
            depth++;
            break;
        case ']':
        case '}':
            if (--depth < 0) {
                return -1;
            }
            break;
        case ',':
            if (depth == 0 && at - last >= piece) {
                cuts[found++] = at - text;
                last = at;
            }
            break;
        default:
            break;
        }
        at++;
    }
    return depth == 0 ? found : -1;
}

/* Where a container's content may be cut into pieces that are contents, too: offsets of commas; None: nowhere. */
PyObject *module_split_json(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t piece = count == 2 && PyBytes_Check(args[0]) ? PyLong_AsSsize_t(args[1]) : -1;
    if (piece < 1) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "split_json takes bytes, and how many are in a piece at least");
        }
        return NULL;
    }
    const char *text = PyBytes_AS_STRING(args[0]);
    const Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    Py_ssize_t *cuts = PyMem_Malloc((size / piece + 1) * sizeof(Py_ssize_t)), found;
    if (cuts == NULL) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    found = find_cuts(text, text + size, piece, cuts);
    Py_END_ALLOW_THREADS
    PyObject *list = found < 0 ? Py_NewRef(Py_None) : PyList_New(found);
    for (Py_ssize_t at = 0; list != NULL && at < found; at++) {
        PyObject *offset = PyLong_FromSsize_t(cuts[at]);
        if (offset == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, at, offset);
        }
    }
    PyMem_Free(cuts);
    return list;
}
