/* The rows that a batch touched: what `procedures.storage.row_digest` notes at each change, and their net changes by key.
 *
 * One rule: the same rows in the same order as the Python beside it, since digests of both are compared.
 */
#include "native.h"

#include <stdlib.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *name;   /* str */
    PyObject *read;   /* SQL that reads a row by its key */
    PyObject *places; /* tuple of int: columns of the key */
    PyObject *first;  /* dict: key -> row before the first change, None = there was none */
    PyObject *last;   /* dict: key -> row after the last */
    Py_ssize_t *columns; /* `places` */
    Py_ssize_t count;
} TouchedRows;

/* -- keys --------------------------------------------------------------------------------------------------------------- */

/* Whether a row has all columns of the key; 0 with an exception. */
static int has_key(TouchedRows *self, PyObject *row)
{
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_TypeError, "a row is a tuple");
        return 0;
    }
    for (Py_ssize_t at = 0; at < self->count; at++) {
        if (self->columns[at] >= PyTuple_GET_SIZE(row)) {
            PyErr_SetString(PyExc_IndexError, "tuple index out of range");
            return 0;
        }
    }
    return 1;
}

/* The key of a row: the value of its only column, or a tuple. A new reference. */
static PyObject *key_of(TouchedRows *self, PyObject *row)
{
    if (!has_key(self, row)) {
        return NULL;
    }
    if (self->count == 1) {
        return Py_NewRef(PyTuple_GET_ITEM(row, self->columns[0]));
    }
    PyObject *key = PyTuple_New(self->count);
    for (Py_ssize_t at = 0; key != NULL && at < self->count; at++) {
        PyTuple_SET_ITEM(key, at, Py_NewRef(PyTuple_GET_ITEM(row, self->columns[at])));
    }
    return key;
}

static PyObject *touched_key_of(TouchedRows *self, PyObject *row)
{
    return key_of(self, row);
}

/* Notes that the row with this key was `old` and is `now`. A key is in both dicts or in none, so the first row is kept. */
static int note_row(TouchedRows *self, PyObject *key, PyObject *old, PyObject *now)
{
#if PY_VERSION_HEX < 0x030d0000 /* a tuple does not remember its hash: it is made once */
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) {
        return -1;
    }
    if (_PyDict_GetItem_KnownHash(self->last, key, hash) == NULL &&
        (PyErr_Occurred() || _PyDict_SetItem_KnownHash(self->first, key, old, hash) < 0)) {
        return -1;
    }
    return _PyDict_SetItem_KnownHash(self->last, key, now, hash);
#else
    return PyDict_SetDefault(self->first, key, old) == NULL ? -1 : PyDict_SetItem(self->last, key, now);
#endif
}

/* Whether both rows have the same key: 1, 0, or -1 with an exception. Both have all its columns. */
static int same_key(TouchedRows *self, PyObject *one, PyObject *other)
{
    int same = 1;
    for (Py_ssize_t at = 0; same == 1 && at < self->count; at++) {
        PyObject *value = PyTuple_GET_ITEM(one, self->columns[at]);
        same = PyObject_RichCompareBool(value, PyTuple_GET_ITEM(other, self->columns[at]), Py_EQ);
    }
    return same;
}

/* The row `old`, whose key is another one than that of the row after the change, is gone. */
static int note_moved(TouchedRows *self, PyObject *old)
{
    PyObject *before = key_of(self, old);
    int failed = before == NULL || note_row(self, before, old, Py_None) < 0;
    Py_XDECREF(before);
    return failed ? -1 : 0;
}

int note_change(PyObject *table, PyObject *now, PyObject *old)
{
    TouchedRows *self = (TouchedRows *)table;
    PyObject *key = key_of(self, now == Py_None ? old : now);
    if (key == NULL || (now != Py_None && old != Py_None && !has_key(self, old))) {
        Py_XDECREF(key);
        return -1;
    }
    int same = now == Py_None || old == Py_None ? 1 : same_key(self, old, now);
    int failed = same < 0 || (same == 0 && note_moved(self, old) < 0);
    if (!failed) {
        failed = note_row(self, key, same ? old : Py_None, now) < 0;
    }
    Py_DECREF(key);
    return failed ? -1 : 0;
}

/* -- net changes -------------------------------------------------------------------------------------------------------- */

enum { NUMBERS_MAX = 2 }; /* columns of a key that is sorted as numbers; longer ones as Python sorts tuples */

typedef struct {
    long long numbers[NUMBERS_MAX];
    PyObject *entry;
} Numbered;

static int compare_numbered(const void *left, const void *right)
{
    const Numbered *a = left, *b = right;
    if (a->numbers[0] != b->numbers[0]) {
        return a->numbers[0] < b->numbers[0] ? -1 : 1;
    }
    return a->numbers[1] == b->numbers[1] ? 0 : a->numbers[1] < b->numbers[1] ? -1 : 1;
}

static int read_number(PyObject *value, long long *number)
{
    int overflow = 1;
    if (PyLong_CheckExact(value)) {
        *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    }
    return !overflow;
}

/* Sorts entries (key, row) whose keys are integers; false where they are not. */
static int sort_as_numbers(PyObject *entries)
{
    Py_ssize_t count = PyList_GET_SIZE(entries);
    Numbered *keys = PyMem_Calloc((size_t)count + 1, sizeof(Numbered));
    int numbers = keys != NULL;
    for (Py_ssize_t at = 0; numbers && at < count; at++) {
        PyObject *key = PyTuple_GET_ITEM(PyList_GET_ITEM(entries, at), 0);
        keys[at].entry = PyList_GET_ITEM(entries, at);
        if (!PyTuple_CheckExact(key)) {
            numbers = read_number(key, &keys[at].numbers[0]);
        } else if (PyTuple_GET_SIZE(key) == NUMBERS_MAX) {
            numbers = read_number(PyTuple_GET_ITEM(key, 0), &keys[at].numbers[0]) &&
                      read_number(PyTuple_GET_ITEM(key, 1), &keys[at].numbers[1]);
        } else {
            numbers = 0;
        }
    }
    if (numbers) {
        qsort(keys, (size_t)count, sizeof(Numbered), compare_numbered);
        for (Py_ssize_t at = 0; at < count; at++) {
            PyList_SET_ITEM(entries, at, keys[at].entry); /* the same references in another order */
        }
    }
    PyMem_Free(keys);
    return numbers;
}

/* [(key, row)] of the net changes. Keys of integers are sorted; others are left to the caller: (entries, sorted). */
static PyObject *touched_net_changes(TouchedRows *self, PyObject *unused)
{
    PyObject *entries = PyList_New(0), *key, *row, *first_key, *before;
    Py_ssize_t at = 0, first_at = 0;
    if (entries == NULL) {
        return NULL;
    }
    while (PyDict_Next(self->last, &at, &key, &row)) {
        /* A key comes into both dicts at once, so they have one order, as long as nothing else changes them. */
        if (!PyDict_Next(self->first, &first_at, &first_key, &before) || first_key != key) {
            before = PyDict_GetItemWithError(self->first, key);
        }
        Py_XINCREF(before);
        Py_INCREF(key);
        Py_INCREF(row);
        int differs = before == NULL ? -1 : PyObject_RichCompareBool(before, row, Py_NE);
        PyObject *entry = differs == 1 ? PyTuple_Pack(2, key, row) : NULL;
        int failed = differs < 0 || (differs == 1 && (entry == NULL || PyList_Append(entries, entry) < 0));
        if (failed && !PyErr_Occurred()) {
            PyErr_SetObject(PyExc_KeyError, key);
        }
        Py_XDECREF(entry);
        Py_XDECREF(before);
        Py_DECREF(key);
        Py_DECREF(row);
        if (failed) {
            Py_DECREF(entries);
            return NULL;
        }
    }
    PyObject *sorted = sort_as_numbers(entries) ? Py_True : Py_False;
    return Py_BuildValue("(NO)", entries, sorted);
}

/* -- TouchedRows -------------------------------------------------------------------------------------------------------- */

static PyObject *touched_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *name, *read, *places;
    if (!PyArg_ParseTuple(args, "UUO!", &name, &read, &PyTuple_Type, &places)) {
        return NULL;
    }
    TouchedRows *self = (TouchedRows *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->name = Py_NewRef(name);
    self->read = Py_NewRef(read);
    self->places = Py_NewRef(places);
    self->first = PyDict_New();
    self->last = PyDict_New();
    self->count = PyTuple_GET_SIZE(places);
    self->columns = PyMem_Calloc((size_t)self->count + 1, sizeof(Py_ssize_t));
    for (Py_ssize_t at = 0; self->columns != NULL && at < self->count; at++) {
        self->columns[at] = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, at));
        if (self->columns[at] < 0 && !PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "columns are numbered from 0");
        }
    }
    if (self->first == NULL || self->last == NULL || self->columns == NULL || PyErr_Occurred()) {
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int touched_traverse(TouchedRows *self, visitproc visit, void *arg)
{
    Py_VISIT(self->first);
    Py_VISIT(self->last);
    return 0;
}

static void touched_dealloc(TouchedRows *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->first);
    Py_CLEAR(self->last);
    Py_CLEAR(self->name);
    Py_CLEAR(self->read);
    Py_CLEAR(self->places);
    PyMem_Free(self->columns);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef touched_methods[] = {
    {"key_of", (PyCFunction)touched_key_of, METH_O, "The key of a row: its value, or a tuple of several."},
    {"net_changes", (PyCFunction)touched_net_changes, METH_NOARGS, "([(key, row)] that differ from before, whether sorted)."},
    {NULL},
};

static PyMemberDef touched_members[] = {
    {"name", T_OBJECT_EX, offsetof(TouchedRows, name), READONLY, "of the table"},
    {"read", T_OBJECT_EX, offsetof(TouchedRows, read), READONLY, "SQL that reads a row by its key"},
    {"first", T_OBJECT_EX, offsetof(TouchedRows, first), READONLY, "key -> row before the first change"},
    {"last", T_OBJECT_EX, offsetof(TouchedRows, last), READONLY, "key -> row after the last change"},
    {NULL},
};

PyTypeObject TouchedRowsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "procedures.native.accelerator.TouchedRows",
    .tp_basicsize = sizeof(TouchedRows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = touched_new,
    .tp_dealloc = (destructor)touched_dealloc,
    .tp_traverse = (traverseproc)touched_traverse,
    .tp_methods = touched_methods,
    .tp_members = touched_members,
};

int add_touched_rows(PyObject *module)
{
    return PyModule_AddType(module, &TouchedRowsType);
}
