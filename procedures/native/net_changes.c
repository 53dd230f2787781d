/* The net changes of one table as the bytes that go into a digest: what `marshal` of version 2 makes of (name, [(key, row)]).
 *
 * One rule: the bytes of the Python beside it, or none at all, and that does it. Only values that SQLite gives are written here,
 * and only keys whose columns each hold integers alone or texts alone are sorted here; all of these compare without running code.
 */
#include "native.h"

#include <limits.h>
#include <string.h>

enum { LEADING = 2 }; /* columns of a key that are compared as plain numbers */

typedef struct {
    long long leading[LEADING]; /* as far as the first columns are integers; else 0 */
    PyObject *key, *row;        /* borrowed of the table's dicts, which nothing changes meanwhile */
} Change;

/* -- order -------------------------------------------------------------------------------------------------------------- */

static PyObject *column_of(PyObject *key, Py_ssize_t column)
{
    return PyTuple_CheckExact(key) ? PyTuple_GET_ITEM(key, column) : key;
}

static Py_ssize_t width_of(PyObject *key)
{
    return PyTuple_CheckExact(key) ? PyTuple_GET_SIZE(key) : 1;
}

static int read_number(PyObject *value, long long *number)
{
    int overflow = 1;
    if (PyLong_CheckExact(value)) {
        *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    }
    return !overflow;
}

/* The order of texts is that of their code points, which is that of their bytes in UTF-8. */
static int compare_texts(PyObject *left, PyObject *right)
{
    Py_ssize_t size, other;
    const char *text = PyUnicode_AsUTF8AndSize(left, &size), *with = PyUnicode_AsUTF8AndSize(right, &other);
    int found = memcmp(text, with, (size_t)(size < other ? size : other));
    return found != 0 ? found : (size > other) - (size < other);
}

/* Two keys of the same width, whose columns were found to be alike. */
static int compare_changes(const Change *a, const Change *b)
{
    for (int at = 0; at < LEADING; at++) {
        if (a->leading[at] != b->leading[at]) {
            return a->leading[at] < b->leading[at] ? -1 : 1;
        }
    }
    for (Py_ssize_t at = 0; at < width_of(a->key); at++) {
        PyObject *left = column_of(a->key, at), *right = column_of(b->key, at);
        long long number = 0, other = 0;
        int found;
        if (PyUnicode_CheckExact(left)) {
            found = compare_texts(left, right);
        } else {
            read_number(left, &number);
            read_number(right, &other);
            found = (number > other) - (number < other);
        }
        if (found != 0) {
            return found;
        }
    }
    return 0;
}

/* Sorts by merging runs, `spare` being as long: `qsort` compares through a pointer, which takes twice as long for 500 rows. */
static void sort_changes(Change *changes, Change *spare, Py_ssize_t count)
{
    for (Py_ssize_t run = 1; run < count; run *= 2) {
        for (Py_ssize_t begin = 0; begin < count; begin += 2 * run) {
            Py_ssize_t middle = begin + run < count ? begin + run : count, end = middle + run < count ? middle + run : count;
            Py_ssize_t left = begin, right = middle;
            for (Py_ssize_t at = begin; at < end; at++) {
                int from_left = left < middle && (right == end || compare_changes(&changes[left], &changes[right]) < 0);
                spare[at] = from_left ? changes[left++] : changes[right++];
            }
        }
        memcpy(changes, spare, (size_t)count * sizeof(Change));
    }
}

/* Reads the leading columns of a key; whether it can be sorted with `like`, the first one. */
static int read_key(Change *change, PyObject *like)
{
    Py_ssize_t width = width_of(change->key), size;
    int sortable = width == width_of(like) && PyTuple_CheckExact(change->key) == PyTuple_CheckExact(like), leads = 1;
    for (Py_ssize_t at = 0; sortable && at < width; at++) {
        PyObject *value = column_of(change->key, at);
        long long number;
        if (read_number(value, &number)) {
            sortable = PyLong_CheckExact(column_of(like, at));
            if (leads && at < LEADING) {
                change->leading[at] = number;
            }
        } else {
            leads = 0;
            sortable = PyUnicode_CheckExact(value) && PyUnicode_CheckExact(column_of(like, at)) &&
                       PyUnicode_AsUTF8AndSize(value, &size) != NULL;
        }
    }
    return sortable;
}

/* -- bytes -------------------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char *data;
    size_t size, room;
    int failed; /* no memory, or a value that is not written here */
} Bytes;

/* Room for `count` more bytes; NULL when there is none. */
static unsigned char *reserve(Bytes *out, size_t count)
{
    if (out->room - out->size < count) {
        size_t room = 2 * out->room + count + 1024;
        unsigned char *data = out->failed ? NULL : PyMem_Realloc(out->data, room);
        if (data == NULL) {
            out->failed = 1;
            return NULL;
        }
        out->data = data;
        out->room = room;
    }
    out->size += count;
    return out->data + out->size - count;
}

static void put_little_endian(unsigned char *place, unsigned long long value, int bytes)
{
    for (int at = 0; at < bytes; at++) {
        place[at] = (unsigned char)(value >> 8 * at);
    }
}

/* A letter for the type, and 32 bits. */
static void write_head(Bytes *out, char type, long long number)
{
    unsigned char *place = reserve(out, 5);
    if (place != NULL) {
        place[0] = (unsigned char)type;
        put_little_endian(place + 1, (unsigned long long)number, 4);
    }
}

static void write_run(Bytes *out, char type, const char *data, Py_ssize_t size)
{
    out->failed |= data == NULL || size > INT_MAX;
    write_head(out, type, size);
    unsigned char *place = out->failed ? NULL : reserve(out, (size_t)size);
    if (place != NULL) {
        memcpy(place, data, (size_t)size);
    }
}

/* More than 32 bits are written in digits of 15. */
static void write_number(Bytes *out, long long number)
{
    if (number >= INT_MIN && number <= INT_MAX) {
        write_head(out, 'i', number);
        return;
    }
    unsigned long long left = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
    unsigned char digits[10];
    int count = 0;
    for (; left != 0; left >>= 15) {
        put_little_endian(digits + 2 * count++, left & 0x7fff, 2);
    }
    write_head(out, 'l', number < 0 ? -count : count);
    unsigned char *place = reserve(out, 2 * (size_t)count);
    if (place != NULL) {
        memcpy(place, digits, 2 * (size_t)count);
    }
}

static void write_value(Bytes *out, PyObject *value)
{
    long long number;
    Py_ssize_t size = 0;
    if (read_number(value, &number)) {
        write_number(out, number);
    } else if (PyUnicode_CheckExact(value)) {
        const char *text = PyUnicode_AsUTF8AndSize(value, &size);
        write_run(out, 'u', text, size);
    } else if (PyBytes_CheckExact(value)) {
        write_run(out, 's', PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    } else if (PyFloat_CheckExact(value)) {
        double real = PyFloat_AS_DOUBLE(value);
        unsigned long long bits;
        unsigned char *place = reserve(out, 9);
        memcpy(&bits, &real, sizeof bits);
        if (place != NULL) {
            place[0] = 'g';
            put_little_endian(place + 1, bits, 8);
        }
    } else if (value == Py_None) {
        unsigned char *place = reserve(out, 1);
        if (place != NULL) {
            place[0] = 'N';
        }
    } else {
        out->failed = 1;
    }
}

/* A value, or a tuple of values. */
static void write_row(Bytes *out, PyObject *row)
{
    if (!PyTuple_CheckExact(row)) {
        write_value(out, row);
        return;
    }
    write_head(out, '(', PyTuple_GET_SIZE(row));
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(row); at++) {
        write_value(out, PyTuple_GET_ITEM(row, at));
    }
}

/* -- net changes -------------------------------------------------------------------------------------------------------- */

/* Whether a row is None or a tuple of values that compare without running code. */
static int is_plain(PyObject *row)
{
    int plain = row == Py_None || PyTuple_CheckExact(row);
    for (Py_ssize_t at = 0; plain && row != Py_None && at < PyTuple_GET_SIZE(row); at++) {
        PyObject *value = PyTuple_GET_ITEM(row, at);
        plain = PyLong_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) ||
                PyFloat_CheckExact(value) || value == Py_None;
    }
    return plain;
}

/* Reads the changes; how many there are, or -1 where Python has to say. */
static Py_ssize_t read_changes(TouchedRows *self, Change *changes)
{
    PyObject *key, *row, *first_key, *before;
    Py_ssize_t at = 0, first_at = 0, count = 0;
    while (PyDict_Next(self->last, &at, &key, &row)) {
        /* A key comes into both dicts at once, so they have one order. */
        if (!PyDict_Next(self->first, &first_at, &first_key, &before) || first_key != key || !is_plain(row) || !is_plain(before)) {
            return -1;
        }
        int differs = PyObject_RichCompareBool(before, row, Py_NE);
        if (differs < 0) {
            return -1;
        }
        if (differs) {
            changes[count] = (Change){.key = key, .row = row};
            if (!read_key(&changes[count], changes[0].key)) {
                return -1;
            }
            count++;
        }
    }
    return count;
}

PyObject *touched_net_bytes(TouchedRows *self, PyObject *unused)
{
    Change *changes = PyMem_Calloc(2 * (size_t)PyDict_GET_SIZE(self->last) + 1, sizeof(Change));
    Py_ssize_t count = changes == NULL ? -1 : read_changes(self, changes);
    Bytes out = {.failed = count < 0};
    if (count > 0) {
        sort_changes(changes, changes + count, count);
        write_head(&out, '(', 2);
        write_value(&out, self->name);
        write_head(&out, '[', count);
        for (Py_ssize_t at = 0; at < count; at++) {
            write_head(&out, '(', 2);
            write_row(&out, changes[at].key);
            write_row(&out, changes[at].row);
        }
    }
    PyMem_Free(changes);
    PyObject *made = out.failed ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)out.data, (Py_ssize_t)out.size);
    PyMem_Free(out.data);
    PyErr_Clear(); /* whatever is wrong with a value, Python says it */
    return made;
}
