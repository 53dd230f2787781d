/* What a call of a session brings to the log, from its header: `session_names.c`. */
#ifndef CMDLOG_SESSION_NAMES_H
#define CMDLOG_SESSION_NAMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *name_session_call(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
