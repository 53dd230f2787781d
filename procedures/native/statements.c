/* The open statements of one connection: they are prepared here, and ended before the connection is closed.
 *
 * One rule: nothing here waits for SQLite. A thread inside SQLite has the connection's mutex and may want the GIL, for a hook or a
 * function in Python; a second one that waits for the mutex with the GIL would never get it. The collector runs in any thread.
 */
#include "native.h"

#include <structmember.h>

#define OPEN_MAX 1024 /* statements of a connection; as many as APSW's cache holds. Further ones go through that */

/* NULL where the connection has been closed: then APSW says so. No exception is set, and none is lost. */
static sqlite3 *connection_pointer(PyObject *connection)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *pointer = PyObject_CallMethod(connection, "sqlite3_pointer", NULL);
    sqlite3 *db = pointer == NULL ? NULL : PyLong_AsVoidPtr(pointer);
    Py_XDECREF(pointer);
    PyErr_Restore(type, error, traceback);
    return db;
}

/* Whether this thread has the connection, which it must leave again. */
static int enter(Statements *self)
{
    return sqlite_mutex_try(sqlite_db_mutex(self->db)) == SQLITE_OK;
}

static void leave(Statements *self)
{
    sqlite_mutex_leave(sqlite_db_mutex(self->db));
}

/* Ends a statement; 0 where another thread has the connection. */
static int finalize(Statements *self, sqlite3_stmt *stmt)
{
    if (connection_pointer(self->connection) == NULL) { /* closed by force: its last statement takes the mutex with it */
        sqlite_finalize(stmt);
        return 1;
    }
    if (!enter(self)) {
        return 0;
    }
    sqlite_finalize(stmt);
    leave(self);
    return 1;
}

static void end_left(Statements *self)
{
    while (self->left_count > 0 && finalize(self, self->left[self->left_count - 1])) {
        self->left_count--;
    }
}

void end_statement(Statement *self)
{
    Statements *owner = self->owner;
    if (self->stmt == NULL) {
        return;
    }
    if (!finalize(owner, self->stmt)) {
        owner->left[owner->left_count++] = self->stmt;
    }
    self->stmt = NULL;
    if (self->before != NULL) {
        self->before->after = self->after;
    } else {
        owner->first = self->after;
    }
    if (self->after != NULL) {
        self->after->before = self->before;
    }
    self->before = self->after = NULL;
    owner->open--;
}

/* -- preparing ---------------------------------------------------------------------------------------------------------- */

/* Makes sure that whatever is open can be left. */
static int make_room(Statements *self)
{
    Py_ssize_t needed = self->open + self->left_count + 1;
    if (self->left_room >= needed) {
        return 1;
    }
    sqlite3_stmt **larger = PyMem_Realloc(self->left, (size_t)needed * 2 * sizeof(sqlite3_stmt *));
    if (larger == NULL) {
        return 0;
    }
    self->left = larger;
    self->left_room = needed * 2;
    return 1;
}

/* The statement, or NULL: with an exception of the authorizer, or without one where APSW must look at it. */
static sqlite3_stmt *prepare(Statement *self, sqlite3 *db)
{
    Py_ssize_t length, expected = self->names == NULL ? -1 : PyTuple_GET_SIZE(self->names);
    const char *text = PyUnicode_AsUTF8AndSize(self->sql, &length), *tail = NULL;
    sqlite3_stmt *stmt = NULL;
    if (text == NULL || length >= INT_MAX) {
        PyErr_Clear(); /* half a pair: APSW raises it again */
        return NULL;
    }
    int code = sqlite_prepare_v3(db, text, (int)length + 1, SQLITE_PREPARE_PERSISTENT, &stmt, &tail);
    int whole = code == SQLITE_OK && stmt != NULL && tail == text + length && !PyErr_Occurred();
    if (whole && (expected < 0 || sqlite_bind_parameter_count(stmt) == expected)) {
        return stmt;
    }
    sqlite_finalize(stmt);
    return NULL;
}

static int open_statement(Statement *self)
{
    Statements *owner = self->owner;
    sqlite3 *db = connection_pointer(owner->connection);
    if (db == NULL) {
        return 0;
    }
    owner->db = db;
    if (!enter(owner)) {
        return 0;
    }
    end_left(owner);
    sqlite3_stmt *stmt = prepare(self, db);
    if (stmt != NULL && (self->stmt != NULL || owner->closed || !make_room(owner))) { /* the authorizer may run anything */
        sqlite_finalize(stmt);
        stmt = NULL;
    }
    leave(owner);
    if (PyErr_Occurred()) { /* KeyboardInterrupt, while the authorizer was asked */
        return -1;
    }
    if (stmt == NULL) {
        self->failed = self->stmt == NULL;
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

int is_ready(Statement *self)
{
    Statements *owner = self->owner;
    if (self->running || owner->closed) {
        return 0;
    }
    if (owner->away > 0) { /* a hook calls this, or another thread, which APSW refuses */
        if (!enter(owner)) {
            return 0;
        }
        leave(owner);
    }
    if (self->stmt != NULL) {
        return 1;
    }
    if (self->failed || owner->open >= OPEN_MAX) {
        return 0;
    }
    return open_statement(self);
}

/* -- Statements --------------------------------------------------------------------------------------------------------- */

static PyObject *statements_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *connection;
    if (!PyArg_ParseTuple(args, "O", &connection)) {
        return NULL;
    }
    if (sqlite_routines == NULL || configured.error_of == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the module was not loaded as an extension of SQLite, or not configured");
        return NULL;
    }
    PyObject *pointer = PyObject_CallMethod(connection, "sqlite3_pointer", NULL);
    sqlite3 *db = pointer == NULL ? NULL : PyLong_AsVoidPtr(pointer);
    Py_XDECREF(pointer);
    Statements *self = db == NULL ? NULL : (Statements *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->connection = Py_NewRef(connection);
        self->db = db;
    }
    return (PyObject *)self;
}

static PyObject *statements_close(Statements *self, PyObject *unused)
{
    for (Statement *each = self->first; each != NULL; each = each->after) {
        if (each->running) {
            PyErr_SetString(PyExc_RuntimeError, "a statement of this connection is running");
            return NULL;
        }
    }
    while (self->first != NULL) {
        end_statement(self->first);
    }
    end_left(self);
    if (self->left_count > 0) {
        PyErr_SetString(PyExc_RuntimeError, "another thread uses this connection");
        return NULL;
    }
    self->closed = 1;
    Py_RETURN_NONE;
}

static int statements_traverse(Statements *self, visitproc visit, void *arg)
{
    Py_VISIT(self->connection);
    return 0;
}

static void statements_dealloc(Statements *self)
{
    PyObject_GC_UnTrack(self);
    end_left(self); /* all others are gone: each has a reference to this */
    PyMem_Free(self->left);
    Py_CLEAR(self->connection);
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
    .tp_methods = statements_methods,
    .tp_members = statements_members,
};

int add_statements(PyObject *module)
{
    return PyModule_AddType(module, &StatementsType);
}
