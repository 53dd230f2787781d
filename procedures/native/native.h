/* What the parts of the module share. */
#ifndef CMDLOG_NATIVE_H
#define CMDLOG_NATIVE_H

#include "sqlite_routines.h"

/* What the product's Python gives the module, once, at `configure`. */
typedef struct {
    PyObject *error_of;     /* (code, message, offset) -> the exception that APSW raises for it */
    PyObject *names_differ; /* class NamesDiffer */
    PyObject *written;      /* tuple: results of changes of 0, 1, 2, … rows */
    PyObject *written_many; /* class: result of a change of more rows */
    PyObject *noted;        /* tuple of exception classes that a transaction looks at */
} Configured;

extern Configured configured;

extern PyTypeObject StatementsType, StatementType, RunnerType, TouchedRowsType, UpdateHookType, BindType;

typedef struct Statement Statement;

/* The open statements of one connection. */
typedef struct {
    PyObject_HEAD
    PyObject *connection; /* apsw.Connection: not closed by the collector while statements are open */
    sqlite3 *db;          /* valid while statements are open: SQLite does not close a connection that has some */
    Statement *first;     /* list of the open ones */
    Py_ssize_t open;
    sqlite3_stmt **left; /* [left_count] of collected objects, which could not be ended at once; room for all that are open */
    Py_ssize_t left_count, left_room;
    int away;    /* steps under way that gave up the GIL */
    char closed; /* everything goes through APSW */
} Statements;

/* The touched rows of one table. */
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

#define PARAMETERS_MAX 64

/* All that a statement refers to is given when it is made, so no cycle consists of such objects alone, and like a tuple it needs no
 * `tp_clear`: it is whole as long as anything can call it. */
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
    PyObject *keys;            /* tuple of (place of a value, set of keys that live here) */
    PyObject *known_names;     /* names of keyword arguments whose order is known: a call site's are one object */
    unsigned char order[PARAMETERS_MAX]; /* of `known_names` */
    char writes, takes_long;             /* `takes_long`: its last run did, so the next one gives up the GIL */
    char failed;                         /* could not be prepared: APSW says why at each run */
    char running;                        /* it is not ended, and hooks that it calls run it through APSW */
};

/* Whether the statement can be run here, prepared and idle; 0 where APSW must do it, -1 with an exception. */
int is_ready(Statement *self);

/* Ends it, or leaves that to the next one that is prepared: another thread may be inside SQLite, waiting for the GIL. */
void end_statement(Statement *self);

/* Binds a value, which must live until the statement is reset. Returns 1; 0 where APSW must bind it; 2: and it holds memory. */
int bind_value(sqlite3_stmt *stmt, int place, PyObject *value);

/* Appends the row at hand as a tuple. */
int append_row(sqlite3_stmt *stmt, PyObject *rows);

/* Runs a statement whose parameters are keyword arguments: values[i] is the one named names[i].
 * NULL without an exception: it must be run by `PyObject_CallOneArg(statement, dict)` instead. */
PyObject *statement_run(PyObject *statement, PyObject *const *values, PyObject *names);

/* Notes a change of a row of the table, which is a TouchedRows: both are tuples, or None for no row. 0; -1 with an exception. */
int note_change(PyObject *table, PyObject *now, PyObject *old);

/* What goes into the digest; b"" when nothing has changed, None where Python has to make it. */
PyObject *touched_net_bytes(TouchedRows *self, PyObject *unused);

int add_binding(PyObject *module);
int add_touched_rows(PyObject *module);
int add_update_hook(PyObject *module);
int add_statements(PyObject *module);
int add_statement(PyObject *module);
int add_runner(PyObject *module);

#endif
