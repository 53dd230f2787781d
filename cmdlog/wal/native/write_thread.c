/* A thread that makes one `pwrite` after the other for a caller that does something else meanwhile.
 *
 * It never holds the interpreter's lock and runs no Python. One write is under way at a time. `order` says whose turn it is:
 *
 *     NONE, DONE -> WRITE    by the caller, which has filled in what is to be written
 *     WRITE -> BEGUN         by the thread, about to enter the kernel, which completes the write whatever becomes of the process
 *     BEGUN -> DONE          by the thread, which has filled in `result`
 *     NONE, DONE -> CLOSE    by the caller; the thread ends
 *
 * It is the word of a futex (futex(2)): who waits for its change sleeps there. A fork has no such thread; what it does with the
 * object then is refused, and never waits.
 */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { INTERFACE = 2 }; /* one more with each change that older Python, or newer, does not know */

enum { NONE, WRITE, BEGUN, DONE, CLOSE };

#define STACK_BYTES (128 << 10)
#define BEGIN_SPINS 200 /* some microseconds: a thread that was awake has seen the order by then */

typedef struct {
    PyObject_HEAD
    char *memory; /* [bytes_max], at a page's boundary, as direct I/O wants it */
    size_t bytes_max;
    pthread_t thread;
    int runs;
    pid_t pid; /* whose thread it is */
    _Atomic uint32_t order;
    _Atomic int thread_sleeps, caller_waits;
    int fd;
    size_t size;
    off_t offset;
    long result; /* bytes, or an error's negative number */
} WriteThread;

static int sleep_on(_Atomic uint32_t *word, uint32_t seen)
{
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0) == 0 ? 0 : errno;
}

static void wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int is_order(uint32_t word)
{
    return word == WRITE || word == CLOSE;
}

static int is_under_way(uint32_t word)
{
    return word == WRITE || word == BEGUN;
}

static uint32_t await_order(WriteThread *self)
{
    uint32_t word = atomic_load(&self->order);
    while (!is_order(word)) {
        atomic_store(&self->thread_sleeps, 1);
        word = atomic_load(&self->order); /* given before it was seen that the thread sleeps: it wakes nobody */
        if (!is_order(word)) {
            sleep_on(&self->order, word);
            word = atomic_load(&self->order);
        }
        atomic_store(&self->thread_sleeps, 0);
    }
    return word;
}

static void *serve(void *given)
{
    WriteThread *self = given;
    for (;;) {
        uint32_t word = await_order(self);
        if (word == CLOSE) {
            return NULL;
        }
        atomic_store(&self->order, BEGUN);
        if (atomic_load(&self->caller_waits)) {
            wake(&self->order);
        }
        ssize_t written = pwrite(self->fd, self->memory, self->size, self->offset);
        self->result = written < 0 ? -errno : written;
        atomic_store(&self->order, DONE);
        if (atomic_load(&self->caller_waits)) {
            wake(&self->order);
        }
    }
}

static int is_usable(WriteThread *self)
{
    if (self->runs && self->pid == getpid()) {
        return 1;
    }
    PyErr_SetString(PyExc_ValueError, self->runs ? "the thread belongs to another process" : "the thread has ended");
    return 0;
}

static int sleep_as_caller(WriteThread *self, uint32_t seen)
{
    atomic_store(&self->caller_waits, 1);
    int error = sleep_on(&self->order, seen);
    atomic_store(&self->caller_waits, 0);
    return error;
}

/* Until nothing is under way. False: a signal's handler has raised. */
static int await_end(WriteThread *self)
{
    uint32_t seen;
    while (is_under_way(seen = atomic_load(&self->order))) {
        int error;
        Py_BEGIN_ALLOW_THREADS
        error = sleep_as_caller(self, seen);
        Py_END_ALLOW_THREADS
        if (error == EINTR && PyErr_CheckSignals() < 0) {
            return 0;
        }
    }
    return 1;
}

/* Until the thread has the order in hand. It takes as long as waking a thread, if it slept. */
static void await_begin(WriteThread *self)
{
    for (int spins = 0; spins < BEGIN_SPINS; spins++) {
        if (atomic_load(&self->order) != WRITE) {
            return;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    while (atomic_load(&self->order) == WRITE) {
        sleep_as_caller(self, WRITE);
    }
    Py_END_ALLOW_THREADS
}

static void end_thread(WriteThread *self)
{
    if (self->runs && self->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS
        uint32_t seen;
        while (is_under_way(seen = atomic_load(&self->order))) {
            sleep_as_caller(self, seen);
        }
        atomic_store(&self->order, CLOSE);
        wake(&self->order);
        pthread_join(self->thread, NULL);
        Py_END_ALLOW_THREADS
    }
    self->runs = 0;
}

static int start_thread(WriteThread *self)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = pthread_attr_init(&attributes);
    if (error != 0) {
        return error;
    }
    pthread_attr_setstacksize(&attributes, STACK_BYTES); /* refused: it has the usual one */
    sigfillset(&all); /* signals are for the threads that can handle them */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&self->thread, &attributes, serve, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error == 0) {
        pthread_setname_np(self->thread, "cmdlog-log-io");
    }
    return error;
}

static PyObject *write_thread_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    Py_ssize_t bytes_max;
    if (!PyArg_ParseTuple(args, "n:WriteThread", &bytes_max)) {
        return NULL;
    }
    if (bytes_max <= 0 || (named != NULL && PyDict_GET_SIZE(named) > 0)) {
        PyErr_SetString(PyExc_ValueError, "WriteThread(bytes_max)");
        return NULL;
    }
    WriteThread *self = (WriteThread *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->pid = getpid();
    self->bytes_max = (size_t)bytes_max;
    char *memory = mmap(NULL, self->bytes_max, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int error = memory == MAP_FAILED ? errno : 0;
    if (error == 0) {
        self->memory = memory;
        error = start_thread(self);
    }
    if (error != 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    self->runs = 1;
    return (PyObject *)self;
}

static void write_thread_dealloc(WriteThread *self)
{
    end_thread(self);
    if (self->memory != NULL) {
        munmap(self->memory, self->bytes_max);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *write_thread_start(WriteThread *self, PyObject *args)
{
    int fd;
    Py_buffer data;
    long long offset;
    if (!PyArg_ParseTuple(args, "iy*L:start", &fd, &data, &offset)) {
        return NULL;
    }
    int usable = is_usable(self);
    if (usable && (is_under_way(atomic_load(&self->order)) || (size_t)data.len > self->bytes_max)) {
        PyErr_SetString(PyExc_ValueError, "a write is under way, or this one is too long");
        usable = 0;
    }
    if (usable) {
        memcpy(self->memory, data.buf, (size_t)data.len);
        self->fd = fd;
        self->size = (size_t)data.len;
        self->offset = offset;
        atomic_store(&self->order, WRITE);
        if (atomic_load(&self->thread_sleeps)) {
            wake(&self->order);
        }
        await_begin(self);
    }
    PyBuffer_Release(&data);
    if (!usable) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *write_thread_finish(WriteThread *self, PyObject *nothing)
{
    int waits = is_under_way(atomic_load(&self->order));
    if (!is_usable(self) || !await_end(self)) {
        return NULL;
    }
    return Py_BuildValue("Nl", PyBool_FromLong(waits), self->result);
}

static PyObject *write_thread_close(WriteThread *self, PyObject *nothing)
{
    end_thread(self);
    Py_RETURN_NONE;
}

static PyMethodDef write_thread_methods[] = {
    {"start", (PyCFunction)write_thread_start, METH_VARARGS, NULL},
    {"finish", (PyCFunction)write_thread_finish, METH_NOARGS, NULL},
    {"close", (PyCFunction)write_thread_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject write_thread_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cmdlog.wal.native.write_thread.WriteThread",
    .tp_basicsize = sizeof(WriteThread),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = write_thread_new,
    .tp_dealloc = (destructor)write_thread_dealloc,
    .tp_methods = write_thread_methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "write_thread", .m_size = -1};

PyMODINIT_FUNC PyInit_write_thread(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddIntConstant(made, "INTERFACE", INTERFACE) < 0 || PyModule_AddType(made, &write_thread_type) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
