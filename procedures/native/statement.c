/* Statements that are prepared once and run without APSW's cursor.
 *
 * One rule: what is unusual is not done here. Before SQLite is touched, a call whose names, values or moment are not the common
 * ones goes to the closure of `procedures.statements.prepared`, which does the same through APSW; after that, an error is the
 * one that APSW raises. So both ways give the same rows, results and errors, and tests compare them.
 */
#include "native.h"

#include <string.h>
#include <structmember.h>

#define SHORT_STEPS_MAX 2000 /* of SQLite's machine: some 50 us */

static PyObject *at_name, *wrote_name, *no_values;

/* -- running ------------------------------------------------------------------------------------------------------------ */

static void raise_error(sqlite3 *db, int code)
{
    int extended = sqlite_extended_errcode(db);
    const char *text = sqlite_errmsg(db);
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); /* it may quote any text */
    if (message == NULL) {
        return;
    }
    code = (extended & 0xff) == (code & 0xff) ? extended : code;
    PyObject *error = PyObject_CallFunction(configured.error_of, "iNi", code, message, sqlite_error_offset(db));
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
}

/* Whether another thread could run Python meanwhile. A site has one thread, and giving the GIL up costs a tenth of a small call. */
static int has_other_threads(void)
{
    PyThreadState *first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    return PyThreadState_Next(first) != NULL;
}

static int step(Statement *self, int gives_way)
{
    int code;
    if (!gives_way) {
        return sqlite_step(self->stmt);
    }
    self->owner->away++;
    Py_BEGIN_ALLOW_THREADS;
    code = sqlite_step(self->stmt);
    Py_END_ALLOW_THREADS;
    self->owner->away--;
    return code;
}

/* Steps to the end; rows, if there are any, go to `rows`. */
static int step_to_end(Statement *self, PyObject *rows)
{
    int gives_way = self->takes_long && has_other_threads();
    for (;;) {
        int code = step(self, gives_way);
        if (PyErr_Occurred()) { /* of a hook or a function, called by SQLite */
            return -1;
        }
        if (code == SQLITE_DONE) {
            return 0;
        }
        if (code != SQLITE_ROW) {
            raise_error(self->owner->db, code);
            return -1;
        }
        if (rows != NULL && append_row(self->stmt, rows) < 0) {
            return -1;
        }
    }
}

/* The values are bound; runs the statement and makes its result. `params` gives the parameters as a dict, if the result needs
 * them. Steals nothing. */
static PyObject *run_bound(Statement *self, int holds_memory, PyObject *params)
{
    PyObject *rows = NULL, *result = NULL;
    if (self->writes) {
        PyObject *at = PyObject_GetAttr(self->state, at_name); /* before it runs: OR FAIL may leave half a change behind */
        int failed = at == NULL || PyObject_SetAttr(self->state, wrote_name, at) < 0;
        Py_XDECREF(at);
        if (failed) {
            return NULL;
        }
    } else {
        rows = ((PyTypeObject *)self->result)->tp_new((PyTypeObject *)self->result, no_values, NULL);
        if (rows == NULL) {
            return NULL;
        }
    }
    self->running = 1;
    int failed = step_to_end(self, rows);
    int64_t changed = !failed && self->writes ? sqlite_changes64(self->owner->db) : 0;
    sqlite_reset(self->stmt);
    self->takes_long = sqlite_stmt_status(self->stmt, SQLITE_STMTSTATUS_VM_STEP, 1) > SHORT_STEPS_MAX;
    if (holds_memory) {
        sqlite_clear_bindings(self->stmt);
    }
    self->running = 0;
    if (failed) {
        Py_XDECREF(rows);
        return NULL;
    }
    if (!self->writes) {
        return rows;
    }
    if (self->result != NULL) {
        PyObject *parts = Py_BuildValue("((LOO))", (long long)changed, params, Py_None);
        if (parts != NULL) {
            result = PyObject_Call(self->result, parts, NULL);
            Py_DECREF(parts);
        }
        return result;
    }
    if (changed < PyTuple_GET_SIZE(configured.written)) {
        return Py_NewRef(PyTuple_GET_ITEM(configured.written, changed));
    }
    return PyObject_CallFunction(configured.written_many, "L", (long long)changed);
}

static PyObject *raise_names_differ(void)
{
    PyErr_SetNone(configured.names_differ);
    return NULL;
}

/* The values in the order of binding, as a tuple that keeps them: SQLite reads them where they are. */
static PyObject *values_of(Statement *self, PyObject *params)
{
    if (self->names == NULL) {
        PyObject *picked = PyObject_CallOneArg(self->pick, params);
        return picked == NULL && PyErr_ExceptionMatches(PyExc_KeyError) ? raise_names_differ() : picked;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(self->names);
    if (PyDict_GET_SIZE(params) != count) {
        return raise_names_differ();
    }
    PyObject *values = PyTuple_New(count);
    for (Py_ssize_t place = 0; values != NULL && place < count; place++) {
        PyObject *value = PyDict_GetItemWithError(params, PyTuple_GET_ITEM(self->names, place));
        if (value == NULL) {
            Py_DECREF(values);
            return PyErr_Occurred() ? NULL : raise_names_differ();
        }
        PyTuple_SET_ITEM(values, place, Py_NewRef(value));
    }
    return values;
}

static int has_plain_hash(PyObject *value)
{
    return PyLong_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value);
}

/* Whether all values that must be keys of this partition are known to be; `order`: where the value of a place is, NULL: there.
 * It runs no Python. */
static int keys_are_here(Statement *self, PyObject *const *values, Py_ssize_t held, const unsigned char *order)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->keys);
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *key = PyTuple_GET_ITEM(self->keys, at);
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(key, 0));
        PyObject *value = place < held ? values[order == NULL ? place : order[place]] : Py_None;
        int here = has_plain_hash(value) ? PySet_Contains(PyTuple_GET_ITEM(key, 1), value) : 0;
        if (here <= 0) {
            PyErr_Clear(); /* no memory for a hash: the other way says so */
            return 0;
        }
    }
    return 1;
}

/* Binds all; 0 where APSW must do it. */
static int bind_values(Statement *self, PyObject *values, int *holds_memory)
{
    if (self->stmt == NULL || self->running || !PyTuple_Check(values)) { /* `pick` may have run anything */
        return 0;
    }
    if (!keys_are_here(self, ((PyTupleObject *)values)->ob_item, PyTuple_GET_SIZE(values), NULL)) {
        return 0;
    }
    Py_ssize_t count = sqlite_bind_parameter_count(self->stmt);
    for (Py_ssize_t place = 0; place < count; place++) {
        int bound = PyTuple_GET_SIZE(values) == count ? bind_value(self->stmt, (int)place + 1, PyTuple_GET_ITEM(values, place)) : 0;
        if (bound == 0) {
            return 0;
        }
        *holds_memory |= bound == 2;
    }
    return PyTuple_GET_SIZE(values) == count;
}

/* run(params): as the closures of `procedures.statements.prepared`. */
static PyObject *statement_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Statement *self = (Statement *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a statement is called with a dict of its parameters");
        return NULL;
    }
    PyObject *params = args[0];
    int ready = is_ready(self), holds_memory = 0;
    if (ready <= 0) {
        return ready < 0 ? NULL : PyObject_CallOneArg(self->fallback, params);
    }
    PyObject *values = values_of(self, params);
    if (values == NULL) {
        return NULL;
    }
    PyObject *result = bind_values(self, values, &holds_memory) ? run_bound(self, holds_memory, params)
                                                                : PyObject_CallOneArg(self->fallback, params);
    Py_DECREF(values);
    return result;
}

/* Finds which keyword argument each parameter is; 0 where they are not the statement's names. */
static int learn_order(Statement *self, PyObject *names)
{
    unsigned char order[PARAMETERS_MAX]; /* that of `known_names` holds until all of this one is found */
    Py_ssize_t count = PyTuple_GET_SIZE(self->names);
    if (count > PARAMETERS_MAX || PyTuple_GET_SIZE(names) != count) {
        return 0;
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        Py_ssize_t found = -1;
        for (Py_ssize_t given = 0; given < count && found < 0; given++) {
            int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(names, given), PyTuple_GET_ITEM(self->names, place), Py_EQ);
            if (same < 0) {
                return -1;
            }
            found = same ? given : -1;
        }
        if (found < 0) {
            return 0;
        }
        order[place] = (unsigned char)found;
    }
    memcpy(self->order, order, (size_t)count);
    Py_XSETREF(self->known_names, Py_NewRef(names));
    return 1;
}

PyObject *statement_run(PyObject *statement, PyObject *const *values, PyObject *names)
{
    Statement *self = (Statement *)statement;
    if (self->names == NULL || (self->writes && self->result != NULL) || is_ready(self) <= 0) {
        return NULL; /* the result of an INSERT keeps its parameters as a dict */
    }
    Py_ssize_t count = PyTuple_GET_SIZE(self->names);
    if (names == NULL) {
        if (count > 0) {
            return NULL;
        }
    } else if (names != self->known_names && learn_order(self, names) <= 0) {
        return NULL;
    }
    if (!keys_are_here(self, values, count, self->order)) {
        return NULL;
    }
    int holds_memory = 0;
    for (Py_ssize_t place = 0; place < count; place++) {
        int bound = bind_value(self->stmt, (int)place + 1, values[self->order[place]]);
        if (bound == 0) {
            return NULL;
        }
        holds_memory |= bound == 2;
    }
    return run_bound(self, holds_memory, NULL);
}

/* -- Statement ---------------------------------------------------------------------------------------------------------- */

static PyObject *statement_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"owner", "sql", "names", "pick", "state", "fallback", "result", "writes", "keys", NULL};
    PyObject *owner, *sql, *names, *pick, *state, *fallback, *result, *keys;
    int writes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UOOOOOpO!", keywords, &StatementsType, &owner, &sql, &names, &pick, &state,
                                     &fallback, &result, &writes, &PyTuple_Type, &keys)) {
        return NULL;
    }
    int rows = PyType_Check(result) && PyType_IsSubtype((PyTypeObject *)result, &PyList_Type);
    if ((names != Py_None && !PyTuple_CheckExact(names)) || (!writes && !rows)) {
        PyErr_SetString(PyExc_TypeError, "names are a tuple or None, and rows are read into a type of list");
        return NULL;
    }
    Statement *self = (Statement *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = statement_call;
    self->owner = (Statements *)Py_NewRef(owner);
    self->sql = Py_NewRef(sql);
    self->names = names == Py_None ? NULL : Py_NewRef(names);
    self->pick = Py_NewRef(pick);
    self->state = Py_NewRef(state);
    self->fallback = Py_NewRef(fallback);
    self->result = result == Py_None ? NULL : Py_NewRef(result);
    self->writes = (char)writes;
    self->keys = Py_NewRef(keys);
    return (PyObject *)self;
}

static int statement_traverse(Statement *self, visitproc visit, void *arg)
{
    Py_VISIT(self->owner);
    Py_VISIT(self->sql);
    Py_VISIT(self->names);
    Py_VISIT(self->pick);
    Py_VISIT(self->state);
    Py_VISIT(self->fallback);
    Py_VISIT(self->result);
    Py_VISIT(self->keys);
    Py_VISIT(self->known_names);
    return 0;
}

static void statement_dealloc(Statement *self)
{
    PyObject_GC_UnTrack(self);
    end_statement(self);
    Py_CLEAR(self->pick);
    Py_CLEAR(self->state);
    Py_CLEAR(self->fallback);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->sql);
    Py_CLEAR(self->names);
    Py_CLEAR(self->result);
    Py_CLEAR(self->keys);
    Py_CLEAR(self->known_names);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject StatementType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "procedures.native.accelerator.Statement",
    .tp_basicsize = sizeof(Statement),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = statement_new,
    .tp_dealloc = (destructor)statement_dealloc,
    .tp_traverse = (traverseproc)statement_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Statement, vectorcall),
};

int add_statement(PyObject *module)
{
    at_name = PyUnicode_InternFromString("at");
    wrote_name = PyUnicode_InternFromString("wrote");
    no_values = PyTuple_New(0);
    if (at_name == NULL || wrote_name == NULL || no_values == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &StatementType);
}
