/* The rows that a batch touched: what `procedures.storage.row_digest` notes at each change.
 *
 * One rule: the same rows in the same order as the Python beside it, since digests of both are compared.
 */
#include "native.h"

#include <structmember.h>

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
    {"net_bytes", (PyCFunction)touched_net_bytes, METH_NOARGS, "The net changes as bytes; None where Python makes them."},
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
