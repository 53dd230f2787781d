/* Statements that are prepared once and run without APSW's cursor.
 *
 * One rule: what is unusual is not done here. Before SQLite is touched, a call whose names, values or moment are not the common
 * ones goes to the closure of `procedures.statements.prepared`, which does the same through APSW; after that, an error is the
 * one that APSW raises. So both ways give the same rows, results and errors, and tests compare them.
 *
 * `Statements` knows the open statements of one connection and ends them before it is closed: SQLite does not close a
 * connection that has some.
 */
#include "native.h"

#include <structmember.h>

#define OPEN_MAX 1024 /* statements of a connection; as many as APSW's cache holds. Further ones go through that */
#define PARAMETERS_MAX 64
#define SHORT_STEPS_MAX 2000 /* of SQLite's machine: some 50 us */

typedef struct Statement Statement;

typedef struct {
    PyObject_HEAD
    PyObject *connection; /* apsw.Connection: not closed by the collector while statements are open */
    sqlite3 *db;          /* NULL once closed */
    Statement *first;     /* list of the open ones */
    Py_ssize_t open;
} Statements;

struct Statement {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Statements *owner;
    Statement *before, *after; /* in the owner's list, while `stmt` is not NULL */
    sqlite3_stmt *stmt;        /* prepared at its first run, when the authorizer judges for procedures */
    PyObject *sql;             /* str */
    PyObject *names;           /* tuple of str, in the order of binding; NULL where `pick` orders the values */
    PyObject *pick;            /* dict of parameters -> tuple of values */
    PyObject *state;           /* CallState */
    PyObject *fallback;        /* the closure that does the same through APSW */
    PyObject *result;          /* list type for rows; of a change: class of an INSERT's result, or NULL */
    PyObject *known_names;     /* names of keyword arguments whose order is known: a call site's are one object */
    unsigned char order[PARAMETERS_MAX];
    char writes, takes_long; /* `takes_long`: its last run did, so the next one gives up the GIL */
    char failed;             /* could not be prepared: APSW says why at each run */
};

static PyObject *at_name, *wrote_name, *no_values;

/* -- Statements --------------------------------------------------------------------------------------------------------- */

static void end_statement(Statement *self)
{
    if (self->stmt == NULL) {
        return;
    }
    sqlite_finalize(self->stmt);
    self->stmt = NULL;
    if (self->before != NULL) {
        self->before->after = self->after;
    } else {
        self->owner->first = self->after;
    }
    if (self->after != NULL) {
        self->after->before = self->before;
    }
    self->before = self->after = NULL;
    self->owner->open--;
}

static PyObject *statements_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *connection, *pointer;
    if (!PyArg_ParseTuple(args, "O", &connection)) {
        return NULL;
    }
    if (sqlite_routines == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the module was not loaded as an extension of SQLite");
        return NULL;
    }
    pointer = PyObject_CallMethod(connection, "sqlite3_pointer", NULL);
    if (pointer == NULL) {
        return NULL;
    }
    sqlite3 *db = PyLong_AsVoidPtr(pointer);
    Py_DECREF(pointer);
    if (db == NULL) {
        return NULL;
    }
    Statements *self = (Statements *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->connection = Py_NewRef(connection);
        self->db = db;
    }
    return (PyObject *)self;
}

static PyObject *statements_close(Statements *self, PyObject *unused)
{
    while (self->first != NULL) {
        end_statement(self->first);
    }
    self->db = NULL;
    Py_RETURN_NONE;
}

static int statements_traverse(Statements *self, visitproc visit, void *arg)
{
    Py_VISIT(self->connection);
    return 0;
}

static int statements_clear(Statements *self)
{
    Py_XDECREF(statements_close(self, NULL));
    Py_CLEAR(self->connection);
    return 0;
}

static void statements_dealloc(Statements *self)
{
    PyObject_GC_UnTrack(self);
    statements_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef statements_methods[] = {
    {"close", (PyCFunction)statements_close, METH_NOARGS, "Ends all statements; those that are called later go through APSW."},
    {NULL},
};

static PyMemberDef statements_members[] = {
    {"open", T_PYSSIZET, offsetof(Statements, open), READONLY, "how many statements are prepared"},
    {NULL},
};

PyTypeObject StatementsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "procedures.native.accelerator.Statements",
    .tp_basicsize = sizeof(Statements),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = statements_new,
    .tp_dealloc = (destructor)statements_dealloc,
    .tp_traverse = (traverseproc)statements_traverse,
    .tp_clear = (inquiry)statements_clear,
    .tp_methods = statements_methods,
    .tp_members = statements_members,
};

/* -- preparing ---------------------------------------------------------------------------------------------------------- */

/* Whether the statement can be run here; false without an exception where APSW must do it. */
static int is_ready(Statement *self)
{
    if (self->stmt != NULL) {
        return !sqlite_stmt_busy(self->stmt);
    }
    Statements *owner = self->owner;
    if (self->failed || owner->db == NULL || owner->open >= OPEN_MAX) {
        return 0;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(self->sql, &length), *tail = NULL;
    sqlite3_stmt *stmt = NULL;
    int code = text == NULL || length >= INT_MAX
                   ? -1
                   : sqlite_prepare_v3(owner->db, text, (int)length + 1, SQLITE_PREPARE_PERSISTENT, &stmt, &tail);
    Py_ssize_t expected = self->names == NULL ? -1 : PyTuple_GET_SIZE(self->names);
    int whole = code == SQLITE_OK && stmt != NULL && tail == text + length && !PyErr_Occurred();
    if (!whole || (expected >= 0 && sqlite_bind_parameter_count(stmt) != expected)) {
        PyErr_Clear(); /* of the authorizer, or of text that is no UTF-8: APSW meets the same */
        sqlite_finalize(stmt);
        self->failed = 1;
        return 0;
    }
    self->stmt = stmt;
    self->after = owner->first;
    if (owner->first != NULL) {
        owner->first->before = self;
    }
    owner->first = self;
    owner->open++;
    return 1;
}

/* -- values ------------------------------------------------------------------------------------------------------------- */

/* Binds a value, which must live until the statement is reset. Returns 1; 0 where APSW must bind it; 2: and it holds memory. */
static int bind_value(sqlite3_stmt *stmt, int place, PyObject *value)
{
    if (value == Py_None) {
        return sqlite_bind_null(stmt, place) == SQLITE_OK;
    }
    if (PyLong_Check(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow && sqlite_bind_int64(stmt, place, number) == SQLITE_OK;
    }
    if (PyUnicode_Check(value)) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(value, &length);
        if (text == NULL) {
            PyErr_Clear(); /* half a pair: APSW raises it again */
            return 0;
        }
        return sqlite_bind_text64(stmt, place, text, (uint64_t)length, NULL, SQLITE_UTF8) == SQLITE_OK ? 2 : 0;
    }
    if (PyFloat_Check(value)) {
        return sqlite_bind_double(stmt, place, PyFloat_AS_DOUBLE(value)) == SQLITE_OK;
    }
    if (PyBytes_CheckExact(value)) {
        uint64_t length = (uint64_t)PyBytes_GET_SIZE(value);
        return sqlite_bind_blob64(stmt, place, PyBytes_AS_STRING(value), length, NULL) == SQLITE_OK ? 2 : 0;
    }
    return 0;
}

static PyObject *column_value(sqlite3_stmt *stmt, int place)
{
    switch (sqlite_column_type(stmt, place)) {
    case SQLITE_INTEGER:
        return PyLong_FromLongLong(sqlite_column_int64(stmt, place));
    case SQLITE_FLOAT:
        return PyFloat_FromDouble(sqlite_column_double(stmt, place));
    case SQLITE_TEXT: {
        const char *text = sqlite_column_text(stmt, place);
        if (text == NULL) {
            return PyErr_NoMemory();
        }
        return PyUnicode_FromStringAndSize(text, sqlite_column_bytes(stmt, place));
    }
    case SQLITE_BLOB: {
        const void *bytes = sqlite_column_blob(stmt, place);
        int length = sqlite_column_bytes(stmt, place);
        if (bytes == NULL && length > 0) {
            return PyErr_NoMemory();
        }
        return PyBytes_FromStringAndSize(bytes, length);
    }
    default:
        return Py_NewRef(Py_None);
    }
}

static int append_row(sqlite3_stmt *stmt, PyObject *rows)
{
    int count = sqlite_data_count(stmt);
    PyObject *row = PyTuple_New(count);
    if (row == NULL) {
        return -1;
    }
    for (int place = 0; place < count; place++) {
        PyObject *value = column_value(stmt, place);
        if (value == NULL) {
            Py_DECREF(row);
            return -1;
        }
        PyTuple_SET_ITEM(row, place, value);
    }
    int failed = PyList_Append(rows, row);
    Py_DECREF(row);
    return failed;
}

/* -- running ------------------------------------------------------------------------------------------------------------ */

static void raise_error(sqlite3 *db, int code)
{
    PyObject *error = PyObject_CallFunction(configured.error_of, "isi", code, sqlite_errmsg(db), sqlite_error_offset(db));
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

static int step(sqlite3_stmt *stmt, int gives_way)
{
    int code;
    if (!gives_way) {
        return sqlite_step(stmt);
    }
    Py_BEGIN_ALLOW_THREADS;
    code = sqlite_step(stmt);
    Py_END_ALLOW_THREADS;
    return code;
}

/* Steps to the end; rows, if there are any, go to `rows`. */
static int step_to_end(Statement *self, PyObject *rows)
{
    sqlite3_stmt *stmt = self->stmt;
    int gives_way = self->takes_long && has_other_threads();
    for (;;) {
        int code = step(stmt, gives_way);
        if (PyErr_Occurred()) { /* of a hook or a function, called by SQLite */
            return -1;
        }
        if (code == SQLITE_DONE) {
            return 0;
        }
        if (code != SQLITE_ROW) {
            raise_error(self->owner->db, sqlite_extended_errcode(self->owner->db));
            return -1;
        }
        if (rows != NULL && append_row(stmt, rows) < 0) {
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
    int failed = step_to_end(self, rows);
    int64_t changed = !failed && self->writes ? sqlite_changes64(self->owner->db) : 0;
    sqlite_reset(self->stmt);
    self->takes_long = sqlite_stmt_status(self->stmt, SQLITE_STMTSTATUS_VM_STEP, 1) > SHORT_STEPS_MAX;
    if (holds_memory) {
        sqlite_clear_bindings(self->stmt);
    }
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

/* run(params): as the closures of `procedures.statements.prepared`. */
static PyObject *statement_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Statement *self = (Statement *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a statement is called with a dict of its parameters");
        return NULL;
    }
    PyObject *params = args[0], *values = NULL;
    if (!is_ready(self)) {
        return PyErr_Occurred() ? NULL : PyObject_CallOneArg(self->fallback, params);
    }
    Py_ssize_t count = sqlite_bind_parameter_count(self->stmt);
    if (self->names == NULL) {
        values = PyObject_CallOneArg(self->pick, params);
        if (values == NULL) {
            return NULL;
        }
        if (!PyTuple_Check(values) || PyTuple_GET_SIZE(values) != count) {
            Py_DECREF(values);
            return PyObject_CallOneArg(self->fallback, params);
        }
    } else if (PyDict_GET_SIZE(params) != count) {
        return raise_names_differ();
    }
    int holds_memory = 0;
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *value = values != NULL ? PyTuple_GET_ITEM(values, place)
                                         : PyDict_GetItemWithError(params, PyTuple_GET_ITEM(self->names, place));
        if (value == NULL) {
            return PyErr_Occurred() ? NULL : raise_names_differ();
        }
        int bound = bind_value(self->stmt, (int)place + 1, value);
        if (bound == 0) {
            Py_XDECREF(values);
            return PyErr_Occurred() ? NULL : PyObject_CallOneArg(self->fallback, params);
        }
        holds_memory |= bound == 2;
    }
    PyObject *result = run_bound(self, holds_memory, params);
    Py_XDECREF(values);
    return result;
}

/* Finds which keyword argument each parameter is; false where they are not the statement's names. */
static int learn_order(Statement *self, PyObject *names)
{
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
        self->order[place] = (unsigned char)found;
    }
    Py_XSETREF(self->known_names, Py_NewRef(names));
    return 1;
}

PyObject *statement_run(PyObject *statement, PyObject *const *values, PyObject *names)
{
    Statement *self = (Statement *)statement;
    if (self->names == NULL || (self->writes && self->result != NULL) || !is_ready(self)) {
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
    static char *keywords[] = {"owner", "sql", "names", "pick", "state", "fallback", "result", "writes", NULL};
    PyObject *owner, *sql, *names, *pick, *state, *fallback, *result;
    int writes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!UOOOOOp", keywords, &StatementsType, &owner, &sql, &names, &pick, &state,
                                     &fallback, &result, &writes)) {
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
    return (PyObject *)self;
}

static int statement_traverse(Statement *self, visitproc visit, void *arg)
{
    Py_VISIT(self->owner);
    Py_VISIT(self->pick);
    Py_VISIT(self->state);
    Py_VISIT(self->fallback);
    Py_VISIT(self->result);
    return 0;
}

static int statement_clear(Statement *self)
{
    end_statement(self);
    self->failed = 1;
    Py_CLEAR(self->pick);
    Py_CLEAR(self->state);
    Py_CLEAR(self->fallback);
    return 0;
}

static void statement_dealloc(Statement *self)
{
    PyObject_GC_UnTrack(self);
    statement_clear(self);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->sql);
    Py_CLEAR(self->names);
    Py_CLEAR(self->result);
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
    .tp_clear = (inquiry)statement_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Statement, vectorcall),
};

int add_statements(PyObject *module)
{
    at_name = PyUnicode_InternFromString("at");
    wrote_name = PyUnicode_InternFromString("wrote");
    no_values = PyTuple_New(0);
    if (at_name == NULL || wrote_name == NULL || no_values == NULL) {
        return -1;
    }
    if (PyModule_AddType(module, &StatementsType) < 0) {
        return -1;
    }
    return PyModule_AddType(module, &StatementType);
}
