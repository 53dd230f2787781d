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

extern PyTypeObject StatementsType, StatementType, RunnerType, TouchedRowsType, UpdateHookType, RowPlaceType, BindType;

/* Runs a statement whose parameters are keyword arguments: values[i] is the one named names[i].
 * NULL without an exception: it must be run by `PyObject_CallOneArg(statement, dict)` instead. */
PyObject *statement_run(PyObject *statement, PyObject *const *values, PyObject *names);

PyObject *module_slot_of(PyObject *module, PyObject *value);

int add_binding(PyObject *module);
int add_touched_rows(PyObject *module);
int add_statements(PyObject *module);
int add_runner(PyObject *module);

#endif
