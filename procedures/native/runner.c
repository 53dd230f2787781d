/* `tx.execute` for the common call: one statement, its parameters as keyword arguments.
 *
 * One rule: whatever else it is, `Transaction`'s own methods in Python do it: lists of parameters, names that differ, and what a
 * procedure gets for an error.
 */
#include "native.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *runs; /* statement -> what runs it */
} Runner;

static PyObject *execute_other, *execute_named, *note_error;

static PyObject *as_dict(PyObject *const *values, PyObject *names)
{
    PyObject *params = PyDict_New();
    Py_ssize_t count = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t at = 0; params != NULL && at < count; at++) {
        if (PyDict_SetItem(params, PyTuple_GET_ITEM(names, at), values[at]) < 0) {
            Py_CLEAR(params);
        }
    }
    return params;
}

/* What runs the statement: a new reference, since running it may make the table forget it. */
static PyObject *run_of(Runner *self, PyObject *statement)
{
    if (self->runs == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_runs");
        return NULL;
    }
    PyObject *runs = Py_NewRef(self->runs); /* a `__missing__` or `__eq__` in Python may close the transaction */
    PyObject *run = PyDict_Check(runs) ? PyDict_GetItemWithError(runs, statement) : NULL;
    Py_XINCREF(run);
    if (run == NULL && !PyErr_Occurred()) {
        run = PyObject_GetItem(runs, statement); /* which calls its `__missing__` */
    }
    Py_DECREF(runs);
    return run;
}

/* A statement raised: what the `except` of the class in Python does, with the error as the exception that is handled. */
static PyObject *raise_for(Runner *self, PyObject *statement, PyObject *const *values, PyObject *names)
{
    PyObject *type, *error, *traceback, *result = NULL;
    int differs = PyErr_ExceptionMatches(configured.names_differ);
    if (!differs && !PyErr_ExceptionMatches(configured.noted)) {
        return NULL;
    }
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    _PyErr_StackItem *handled = PyThreadState_Get()->exc_info;
    PyObject *before = handled->exc_value;
    handled->exc_value = error; /* the context of what is raised meanwhile */
    PyObject *params = as_dict(values, names);
    if (params != NULL && differs) {
        result = PyObject_CallMethodObjArgs((PyObject *)self, execute_named, statement, params, NULL);
    } else if (params != NULL) {
        PyObject *raised = PyObject_CallMethodObjArgs((PyObject *)self, note_error, error, statement, params, NULL);
        if (raised != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
            Py_DECREF(raised);
        }
    }
    Py_XDECREF(params);
    handled->exc_value = before;
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return result;
}

/* As Python words it: the text is part of the outcome of a call. */
static PyObject *raise_misuse(Py_ssize_t count)
{
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "Transaction.execute() missing 1 required positional argument: 'statement'");
        return NULL;
    }
    return PyErr_Format(PyExc_TypeError, "Transaction.execute() takes from 2 to 3 positional arguments but %zd were given", count + 1);
}

static PyObject *runner_execute(PyObject *callable, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Runner *self = (Runner *)callable;
    if (count == 2 && args[1] != Py_None) {
        PyObject *params = as_dict(args + count, names), *result = NULL;
        if (params != NULL) {
            result = PyObject_CallMethodObjArgs(callable, execute_other, args[0], args[1], params, NULL);
            Py_DECREF(params);
        }
        return result;
    }
    if (count < 1 || count > 2) {
        return raise_misuse(count);
    }
    PyObject *const *values = args + count;
    PyObject *result = NULL, *run = run_of(self, args[0]);
    if (run != NULL && Py_IS_TYPE(run, &StatementType)) {
        result = statement_run(run, values, names);
    }
    if (run != NULL && result == NULL && !PyErr_Occurred()) {
        PyObject *params = as_dict(values, names);
        result = params == NULL ? NULL : PyObject_CallOneArg(run, params);
        Py_XDECREF(params);
    }
    Py_XDECREF(run);
    return result != NULL ? result : raise_for(self, args[0], values, names);
}

static int runner_traverse(Runner *self, visitproc visit, void *arg)
{
    Py_VISIT(self->runs);
    return 0;
}

static int runner_clear(Runner *self)
{
    Py_CLEAR(self->runs);
    return 0;
}

static void runner_dealloc(Runner *self)
{
    PyObject_GC_UnTrack(self);
    runner_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef runner_methods[] = {
    {"execute", (PyCFunction)(void (*)(void))runner_execute, METH_FASTCALL | METH_KEYWORDS,
     "execute($self, statement, parameters=None, /, **params)\n--\n\n"
     "Runs a SQLAlchemy Core statement; see `procedures.execution.context.Transaction`."},
    {NULL},
};

static PyMemberDef runner_members[] = {
    {"_runs", T_OBJECT_EX, offsetof(Runner, runs), 0, "statement -> what runs it"},
    {NULL},
};

PyTypeObject RunnerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "procedures.native.accelerator.Runner",
    .tp_basicsize = sizeof(Runner),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)runner_dealloc,
    .tp_traverse = (traverseproc)runner_traverse,
    .tp_clear = (inquiry)runner_clear,
    .tp_methods = runner_methods,
    .tp_members = runner_members,
};

int add_runner(PyObject *module)
{
    execute_other = PyUnicode_InternFromString("_execute_each");
    execute_named = PyUnicode_InternFromString("_execute");
    note_error = PyUnicode_InternFromString("_note_error");
    if (execute_other == NULL || execute_named == NULL || note_error == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &RunnerType);
}
