/* What a JSON text says beside its value: `strict_json.c`. */
#ifndef CMDLOG_STRICT_JSON_H
#define CMDLOG_STRICT_JSON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Why a text is not strict; `gate/strict_json.py` has the same numbers. */
enum { STRICT = 0, REPEATED_KEY = -1, TOO_DEEP = -2, LARGE_INTEGER = -3, LONG_NUMBER = -4, NUL_CHARACTER = -5 };

int examine_json(const char *text, Py_ssize_t size, int depth_max, PyObject *value);
PyObject *module_split_json(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *module_examine_json(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
