/* What SQLite calls before each change of a row: the row is noted, and judged by the check of its table.
 *
 * One rule: what is no change of a table of the application goes to the hook in Python (`procedures.storage.row_digest`), but for
 * that of the position, which every batch makes and nobody wants to know.
 */
#include "native.h"

#include <structmember.h>

static PyObject *checks_name, *unreadable_name, *tables_name, *internal, *position_table;

/* A member that is read of each change, and its getter once it is known: the look for it takes longer than what it does. */
typedef struct {
    PyObject *name;
    PyTypeObject *type; /* of whose objects `get` is right; NULL at first */
    PyGetSetDef *get;
} Member;

static Member table_member, new_member, old_member;

/* The member of a change; a new reference. */
static PyObject *member_of(PyObject *update, Member *member)
{
    if (Py_TYPE(update) == member->type) {
        return member->get->get(update, member->get->closure);
    }
    PyObject *found = PyObject_GetAttr((PyObject *)Py_TYPE(update), member->name);
    if (found == NULL) {
        PyErr_Clear();
    } else if (Py_IS_TYPE(found, &PyGetSetDescr_Type) && !PyType_HasFeature(Py_TYPE(update), Py_TPFLAGS_HEAPTYPE)) {
        member->get = ((PyGetSetDescrObject *)found)->d_getset; /* a static type keeps it as long as the process lives */
        member->type = member->get->get == NULL ? NULL : Py_TYPE(update);
    }
    Py_XDECREF(found);
    return PyObject_GetAttr(update, member->name);
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *log;     /* RowLog: has `checks` and `_tables`, gets `unreadable` */
    PyObject *touched; /* dict: name -> TouchedRows of the tables that the batch has touched */
    PyObject *other;   /* the hook in Python, for all else */
    PyObject *newest;  /* TouchedRows of the table that was touched last, or NULL */
} UpdateHook;

/* Whether a row has a value that was found to belong here; `rule` is a `RowCheck`, -1 with an exception. */
static int is_known(PyObject *rule, PyObject *now)
{
    PyObject *here = PyTuple_GET_ITEM(rule, 2);
    Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(rule, 1));
    if (at == -1 && PyErr_Occurred()) {
        return -1;
    }
    return PySet_Check(here) && at >= 0 && at < PyTuple_GET_SIZE(now) ? PySet_Contains(here, PyTuple_GET_ITEM(now, at)) : 0;
}

static int check_row(UpdateHook *self, PyObject *name, PyObject *update, PyObject *now)
{
    PyObject *checks = PyObject_GetAttr(self->log, checks_name);
    if (checks == NULL) {
        return -1;
    }
    PyObject *rule = PyDict_Check(checks) ? PyDict_GetItemWithError(checks, name) : NULL;
    int failed = rule == NULL ? PyErr_Occurred() != NULL : 0;
    if (rule != NULL && (!PyTuple_Check(rule) || PyTuple_GET_SIZE(rule) != 3)) {
        PyErr_SetString(PyExc_TypeError, "a check of rows is a RowCheck");
        failed = 1;
    } else if (rule != NULL) {
        Py_INCREF(rule); /* it may replace the checks */
        int known = is_known(rule, now);
        failed = known < 0;
        if (known == 0) {
            PyObject *args[] = {update, now}, *done = PyObject_Vectorcall(PyTuple_GET_ITEM(rule, 0), args, 2, NULL);
            failed = done == NULL;
            Py_XDECREF(done);
        }
        Py_DECREF(rule);
    }
    Py_DECREF(checks);
    return failed ? -1 : 0;
}

/* The touched rows of a table, which the batch has touched from now on; borrowed. NULL where Python has to say, or with an error. */
static PyObject *touched_table(UpdateHook *self, PyObject *name)
{
    TouchedRows *newest = (TouchedRows *)self->newest; /* a table that has touched rows is among `touched` */
    if (newest != NULL && PyDict_GET_SIZE(newest->last) > 0 && PyUnicode_Compare(newest->name, name) == 0) {
        return self->newest;
    }
    PyObject *table = PyDict_GetItemWithError(self->touched, name);
    if (table == NULL && !PyErr_Occurred() && PyUnicode_Tailmatch(name, internal, 0, PY_SSIZE_T_MAX, -1) == 0) {
        PyObject *tables = PyObject_GetAttr(self->log, tables_name); /* of the application; the log of rows keeps them */
        table = tables != NULL && PyDict_Check(tables) ? PyDict_GetItemWithError(tables, name) : NULL;
        if (table != NULL && PyDict_SetItem(self->touched, name, table) < 0) {
            table = NULL;
        }
        Py_XDECREF(tables);
    }
    if (table == NULL || !PyObject_TypeCheck(table, &TouchedRowsType)) {
        return NULL;
    }
    Py_XSETREF(self->newest, Py_NewRef(table));
    return table;
}

static PyObject *hook_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    UpdateHook *self = (UpdateHook *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1) {
        PyErr_SetString(PyExc_TypeError, "the hook is called with one change");
        return NULL;
    }
    PyObject *update = args[0], *now = NULL, *old = NULL;
    PyObject *name = member_of(update, &table_member);
    if (name == NULL) {
        return NULL;
    }
    PyObject *table = touched_table(self, name);
    if (table == NULL) {
        int position = !PyErr_Occurred() && PyUnicode_Compare(name, position_table) == 0;
        Py_DECREF(name);
        if (position) {
            Py_RETURN_NONE;
        }
        return PyErr_Occurred() ? NULL : PyObject_CallOneArg(self->other, update);
    }
    Py_INCREF(table); /* a collection, at any allocation, may run code that begins another batch */
    now = member_of(update, &new_member);
    old = now == NULL ? NULL : member_of(update, &old_member);
    int failed = old == NULL;
    if (failed && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        failed = PyObject_SetAttr(self->log, unreadable_name, Py_True) < 0;
    } else if (!failed) {
        failed = note_change(table, now, old) < 0 || (now != Py_None && check_row(self, name, update, now) < 0);
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
    Py_VISIT(self->newest);
    return 0;
}

static void hook_dealloc(UpdateHook *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->log);
    Py_CLEAR(self->touched);
    Py_CLEAR(self->other);
    Py_CLEAR(self->newest);
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

int add_update_hook(PyObject *module)
{
    table_member.name = PyUnicode_InternFromString("table_name");
    new_member.name = PyUnicode_InternFromString("new");
    old_member.name = PyUnicode_InternFromString("old");
    checks_name = PyUnicode_InternFromString("checks");
    unreadable_name = PyUnicode_InternFromString("unreadable");
    tables_name = PyUnicode_InternFromString("_tables");
    internal = PyUnicode_InternFromString("_cmdlog_"); /* how tables of the framework begin */
    position_table = PyUnicode_InternFromString("_cmdlog_meta");
    if (table_member.name == NULL || new_member.name == NULL || old_member.name == NULL || checks_name == NULL ||
        unreadable_name == NULL || tables_name == NULL || internal == NULL || position_table == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &UpdateHookType);
}
