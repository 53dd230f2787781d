/* Whether a changed row is where calls with its partitioning value run: of values that were found to belong here.
 *
 * One rule: `procedures.execution.row_checks` decides about every other value.
 */
#include "native.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t at;   /* column of the value */
    PyObject *here;  /* set of values that belong here */
    PyObject *other; /* (change, row) -> None: finds out of others, adds them or raises */
} RowPlace;

static PyObject *place_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    RowPlace *self = (RowPlace *)callable;
    if (PyVectorcall_NARGS(nargsf) != 2 || !PyTuple_Check(args[1]) || self->at >= PyTuple_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a check is called with a change and a row");
        return NULL;
    }
    int known = PySet_Contains(self->here, PyTuple_GET_ITEM(args[1], self->at));
    if (known == 1) {
        Py_RETURN_NONE;
    }
    return known < 0 ? NULL : PyObject_Vectorcall(self->other, args, 2, NULL);
}

static PyObject *place_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t at;
    PyObject *here, *other;
    if (!PyArg_ParseTuple(args, "nO!O", &at, &PySet_Type, &here, &other)) {
        return NULL;
    }
    if (at < 0) {
        PyErr_SetString(PyExc_ValueError, "columns are numbered from 0");
        return NULL;
    }
    RowPlace *self = (RowPlace *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = place_call;
        self->at = at;
        self->here = Py_NewRef(here);
        self->other = Py_NewRef(other);
    }
    return (PyObject *)self;
}

static int place_traverse(RowPlace *self, visitproc visit, void *arg)
{
    Py_VISIT(self->here);
    Py_VISIT(self->other);
    return 0;
}

static int place_clear(RowPlace *self)
{
    Py_CLEAR(self->here);
    Py_CLEAR(self->other);
    return 0;
}

static void place_dealloc(RowPlace *self)
{
    PyObject_GC_UnTrack(self);
    place_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject RowPlaceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "procedures.native.accelerator.RowPlace",
    .tp_basicsize = sizeof(RowPlace),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = place_new,
    .tp_dealloc = (destructor)place_dealloc,
    .tp_traverse = (traverseproc)place_traverse,
    .tp_clear = (inquiry)place_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(RowPlace, vectorcall),
};

int add_row_place(PyObject *module)
{
    return PyModule_AddType(module, &RowPlaceType);
}
