/* Binding the parameters of a request.
 *
 * One rule: the common case is done here, and everything else goes to the Python that says what is wrong with it
 * (`procedures.declaration.procedure`).
 */
#include "native.h"

#include <structmember.h>

/* How a value is checked; the numbers are those of `procedures.wire.scalar_codecs.KINDS`. */
enum { ANY = 0, INTEGER = 1, TEXT = 2, BOOLEAN = 3, NUMBER = 4 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *names;  /* tuple of str */
    PyObject *checks; /* tuple of callables: value -> wire form, may raise */
    PyObject *other;  /* given -> wire list, for whatever is not the common case */
    PyObject *sent;   /* (given, wire list) -> one that knows what was given, where a value is not its own wire form */
    unsigned char *kinds;
} Bind;

/* Whether the value is its own wire form. */
static int is_wire_form(int kind, PyObject *value)
{
    int overflow;
    switch (kind) {
    case INTEGER:
        if (!PyLong_CheckExact(value)) {
            return 0;
        }
        PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow;
    case TEXT:
        return PyUnicode_CheckExact(value) && PyUnicode_IS_ASCII(value);
    case BOOLEAN:
        return value == Py_True || value == Py_False;
    case NUMBER:
        return PyFloat_CheckExact(value) && Py_IS_FINITE(PyFloat_AS_DOUBLE(value));
    default:
        return 0;
    }
}

static PyObject *bind_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Bind *self = (Bind *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL) {
        PyErr_SetString(PyExc_TypeError, "bind takes the object of parameters");
        return NULL;
    }
    PyObject *given = args[0];
    Py_ssize_t count = PyTuple_GET_SIZE(self->names);
    if (!PyDict_CheckExact(given) || PyDict_GET_SIZE(given) != count) {
        return PyObject_CallOneArg(self->other, given);
    }
    PyObject *bound = PyList_New(count);
    if (bound == NULL) {
        return NULL;
    }
    int as_given = 1;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *value = PyDict_GetItemWithError(given, PyTuple_GET_ITEM(self->names, at)), *wire = NULL;
        if (value != NULL) {
            wire = is_wire_form(self->kinds[at], value) ? Py_NewRef(value)
                                                        : PyObject_CallOneArg(PyTuple_GET_ITEM(self->checks, at), value);
        }
        if (wire == NULL) {
            PyErr_Clear(); /* the other way finds it again, and says it */
            Py_DECREF(bound);
            return PyObject_CallOneArg(self->other, given);
        }
        PyList_SET_ITEM(bound, at, wire);
        as_given = as_given && wire == value;
    }
    if (as_given) {
        return bound;
    }
    PyObject *knowing = PyObject_CallFunctionObjArgs(self->sent, given, bound, NULL);
    Py_DECREF(bound);
    return knowing;
}

static int bind_traverse(Bind *self, visitproc visit, void *arg)
{
    Py_VISIT(self->checks);
    Py_VISIT(self->other);
    Py_VISIT(self->sent);
    return 0;
}

static int bind_clear(Bind *self)
{
    Py_CLEAR(self->checks);
    Py_CLEAR(self->other);
    Py_CLEAR(self->sent);
    return 0;
}

static void bind_dealloc(Bind *self)
{
    PyObject_GC_UnTrack(self);
    bind_clear(self);
    Py_CLEAR(self->names);
    PyMem_Free(self->kinds);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *bind_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *names, *checks, *other, *sent;
    Py_buffer kinds;
    if (!PyArg_ParseTuple(args, "O!O!y*OO", &PyTuple_Type, &names, &PyTuple_Type, &checks, &kinds, &other, &sent)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    Bind *self = NULL;
    if (kinds.len != count || PyTuple_GET_SIZE(checks) != count) {
        PyErr_SetString(PyExc_ValueError, "names, checks and kinds are of the same parameters");
    } else {
        self = (Bind *)type->tp_alloc(type, 0);
    }
    if (self != NULL) {
        self->vectorcall = bind_call;
        self->names = Py_NewRef(names);
        self->checks = Py_NewRef(checks);
        self->other = Py_NewRef(other);
        self->sent = Py_NewRef(sent);
        self->kinds = PyMem_Malloc((size_t)count + 1);
        if (self->kinds == NULL) {
            Py_CLEAR(self);
            PyErr_NoMemory();
        } else {
            memcpy(self->kinds, kinds.buf, (size_t)count);
        }
    }
    PyBuffer_Release(&kinds);
    return (PyObject *)self;
}

PyTypeObject BindType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "procedures.native.accelerator.Bind",
    .tp_basicsize = sizeof(Bind),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = bind_new,
    .tp_dealloc = (destructor)bind_dealloc,
    .tp_traverse = (traverseproc)bind_traverse,
    .tp_clear = (inquiry)bind_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Bind, vectorcall),
};

int add_binding(PyObject *module)
{
    return PyModule_AddType(module, &BindType);
}
