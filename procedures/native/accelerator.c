/* The module: what it holds, how it is configured, and the door by which SQLite gives it its routines. */
#include "native.h"

enum { INTERFACE = 5 }; /* one more with each change that older Python, or newer, does not know */

const Routine *sqlite_routines;
Configured configured;

/* SQLite calls this when it loads the module as an extension. */
__attribute__((visibility("default"))) int cmdlog_sqlite_init(sqlite3 *db, char **message, const Routine *routines)
{
    sqlite_routines = routines;
    return SQLITE_OK;
}

/* Version number that the table of routines states. */
static PyObject *sqlite_version(PyObject *module, PyObject *unused)
{
    return PyLong_FromLong(sqlite_routines == NULL ? 0 : sqlite_libversion_number());
}

static PyObject *configure(PyObject *module, PyObject *args)
{
    Configured given;
    if (!PyArg_ParseTuple(args, "OOO!OO!", &given.error_of, &given.names_differ, &PyTuple_Type, &given.written,
                          &given.written_many, &PyTuple_Type, &given.noted)) {
        return NULL;
    }
    Py_INCREF(given.error_of);
    Py_INCREF(given.names_differ);
    Py_INCREF(given.written);
    Py_INCREF(given.written_many);
    Py_INCREF(given.noted);
    configured = given; /* once in a process: what was there before is kept, since statements may be using it */
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, "What the product's Python gives the module."},
    {"sqlite_version", sqlite_version, METH_NOARGS, "Number of the SQLite whose routines are called; 0: none."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "procedures.native.accelerator",
    .m_doc = "Steps of the engine in C; `procedures.native` says which.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_accelerator(void)
{
    int (*const parts[])(PyObject *) = {add_statements, add_statement, add_runner, add_touched_rows, add_update_hook, add_binding};
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) {
        Py_CLEAR(module);
    }
    for (size_t at = 0; module != NULL && at < sizeof parts / sizeof *parts; at++) {
        if (parts[at](module) < 0) {
            Py_CLEAR(module);
        }
    }
    return module;
}
