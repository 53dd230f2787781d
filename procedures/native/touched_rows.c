/* The rows that a batch touched: what `procedures.storage.row_digest` notes at each change, and their net changes by key.
 *
 * One rule: the same rows in the same order as the Python beside it, since digests of both are compared. A change of a table that
 * the batch has not touched yet, and of a table of the framework, goes to that Python.
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

static PyObject *table_name, *new_name, *old_name, *checks_name, *unreadable_name;

/* -- keys --------------------------------------------------------------------------------------------------------------- */

/* The key of a row: the value of its only column, or a tuple. A new reference. */
static PyObject *key_of(TouchedRows *self, PyObject *row)
{
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_TypeError, "a row is a tuple");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < self->count; at++) {
        if (self->columns[at] >= PyTuple_GET_SIZE(row)) {
            PyErr_SetString(PyExc_IndexError, "tuple index out of range");
            return NULL;
        }
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

/* Notes that the row with this key was `old` and is `now`. */
static int note_row(TouchedRows *self, PyObject *key, PyObject *old, PyObject *now)
{
    /* A key is in both dicts or in none, so the first row is kept. */
    return PyDict_SetDefault(self->first, key, old) == NULL ? -1 : PyDict_SetItem(self->last, key, now);
}

static int note_change(TouchedRows *self, PyObject *now, PyObject *old)
{
    PyObject *key = key_of(self, now == Py_None ? old : now);
    int failed = key == NULL;
    if (!failed && now != Py_None && old != Py_None) {
        PyObject *before = key_of(self, old);
        int same = before == NULL ? -1 : PyObject_RichCompareBool(before, key, Py_EQ);
        failed = same < 0;
        if (same == 0) { /* the row moves to another key */
            failed = note_row(self, before, old, Py_None) < 0;
            old = Py_None;
        }
        Py_XDECREF(before);
    }
    if (!failed) {
        failed = note_row(self, key, old, now) < 0;
    }
    Py_XDECREF(key);
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
    PyObject *entries = PyList_New(0), *key, *row;
    Py_ssize_t at = 0;
    if (entries == NULL) {
        return NULL;
    }
    while (PyDict_Next(self->last, &at, &key, &row)) {
        PyObject *before = PyDict_GetItemWithError(self->first, key);
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

/* -- UpdateHook --------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *log;     /* RowLog: has `checks`, gets `unreadable` */
    PyObject *touched; /* dict: name -> TouchedRows of the tables that the batch has touched */
    PyObject *other;   /* the hook in Python, for the first change of a table */
} UpdateHook;

static int check_row(UpdateHook *self, PyObject *name, PyObject *update, PyObject *now)
{
    PyObject *checks = PyObject_GetAttr(self->log, checks_name);
    if (checks == NULL) {
        return -1;
    }
    PyObject *check = PyDict_Check(checks) ? PyDict_GetItemWithError(checks, name) : NULL;
    PyObject *done = NULL;
    if (check != NULL) {
        PyObject *args[] = {update, now};
        Py_INCREF(check); /* it may replace the checks */
        done = PyObject_Vectorcall(check, args, 2, NULL);
        Py_DECREF(check);
    }
    int failed = done == NULL && PyErr_Occurred();
    Py_XDECREF(done);
    Py_DECREF(checks);
    return failed ? -1 : 0;
}

static PyObject *hook_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    UpdateHook *self = (UpdateHook *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1) {
        PyErr_SetString(PyExc_TypeError, "the hook is called with one change");
        return NULL;
    }
    PyObject *update = args[0], *now = NULL, *old = NULL;
    PyObject *name = PyObject_GetAttr(update, table_name);
    if (name == NULL) {
        return NULL;
    }
    PyObject *table = PyDict_GetItemWithError(self->touched, name);
    if (table == NULL || !PyObject_TypeCheck(table, &TouchedRowsType)) {
        Py_DECREF(name);
        return PyErr_Occurred() ? NULL : PyObject_CallOneArg(self->other, update);
    }
    Py_INCREF(table); /* a collection, at any allocation, may run code that begins another batch */
    now = PyObject_GetAttr(update, new_name);
    old = now == NULL ? NULL : PyObject_GetAttr(update, old_name);
    int failed = old == NULL;
    if (failed && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        failed = PyObject_SetAttr(self->log, unreadable_name, Py_True) < 0;
    } else if (!failed) {
        failed = note_change((TouchedRows *)table, now, old) < 0 || (now != Py_None && check_row(self, name, update, now) < 0);
    }
    Py_XDECREF(now);
    Py_XDECREF(old);
    Py_DECREF(table);
    Py_DECREF(name);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *log, *touched, *other;
    if (!PyArg_ParseTuple(args, "OO!O", &log, &PyDict_Type, &touched, &other)) {
        return NULL;
    }
    UpdateHook *self = (UpdateHook *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = hook_call;
        self->log = Py_NewRef(log);
        self->touched = Py_NewRef(touched);
        self->other = Py_NewRef(other);
    }
    return (PyObject *)self;
}

static int hook_traverse(UpdateHook *self, visitproc visit, void *arg)
{
    Py_VISIT(self->log);
    Py_VISIT(self->touched);
    Py_VISIT(self->other);
    return 0;
}

static void hook_dealloc(UpdateHook *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->log);
    Py_CLEAR(self->touched);
    Py_CLEAR(self->other);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject UpdateHookType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "procedures.native.accelerator.UpdateHook",
    .tp_basicsize = sizeof(UpdateHook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = hook_new,
    .tp_dealloc = (destructor)hook_dealloc,
    .tp_traverse = (traverseproc)hook_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(UpdateHook, vectorcall),
};

int add_touched_rows(PyObject *module)
{
    table_name = PyUnicode_InternFromString("table_name");
    new_name = PyUnicode_InternFromString("new");
    old_name = PyUnicode_InternFromString("old");
    checks_name = PyUnicode_InternFromString("checks");
    unreadable_name = PyUnicode_InternFromString("unreadable");
    if (table_name == NULL || new_name == NULL || old_name == NULL || checks_name == NULL || unreadable_name == NULL) {
        return -1;
    }
    if (PyModule_AddType(module, &TouchedRowsType) < 0) {
        return -1;
    }
    return PyModule_AddType(module, &UpdateHookType);
}
