/* Values on their way into a statement and out of its rows.
 *
 * One rule: as APSW does it, or not at all. Of a value that is not one of the five kinds that SQLite stores, APSW says what it is.
 */
#include "native.h"

int bind_value(sqlite3_stmt *stmt, int place, PyObject *value)
{
    if (value == Py_None) {
        return sqlite_bind_null(stmt, place) == SQLITE_OK;
    }
    if (PyLong_Check(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow && sqlite_bind_int64(stmt, place, number) == SQLITE_OK;
    }
    if (PyUnicode_Check(value)) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(value, &length);
        if (text == NULL) {
            PyErr_Clear(); /* half a pair: APSW raises it again */
            return 0;
        }
        return sqlite_bind_text64(stmt, place, text, (uint64_t)length, NULL, SQLITE_UTF8) == SQLITE_OK ? 2 : 0;
    }
    if (PyFloat_Check(value)) {
        return sqlite_bind_double(stmt, place, PyFloat_AS_DOUBLE(value)) == SQLITE_OK;
    }
    if (PyBytes_CheckExact(value)) {
        uint64_t length = (uint64_t)PyBytes_GET_SIZE(value);
        return sqlite_bind_blob64(stmt, place, PyBytes_AS_STRING(value), length, NULL) == SQLITE_OK ? 2 : 0;
    }
    return 0;
}

static PyObject *column_value(sqlite3_stmt *stmt, int place)
{
    switch (sqlite_column_type(stmt, place)) {
    case SQLITE_INTEGER:
        return PyLong_FromLongLong(sqlite_column_int64(stmt, place));
    case SQLITE_FLOAT:
        return PyFloat_FromDouble(sqlite_column_double(stmt, place));
    case SQLITE_TEXT: {
        const char *text = sqlite_column_text(stmt, place);
        if (text == NULL) {
            return PyErr_NoMemory();
        }
        return PyUnicode_FromStringAndSize(text, sqlite_column_bytes(stmt, place));
    }
    case SQLITE_BLOB: {
        const void *bytes = sqlite_column_blob(stmt, place);
        int length = sqlite_column_bytes(stmt, place);
        if (bytes == NULL && length > 0) {
            return PyErr_NoMemory();
        }
        return PyBytes_FromStringAndSize(bytes, length);
    }
    default:
        return Py_NewRef(Py_None);
    }
}

int append_row(sqlite3_stmt *stmt, PyObject *rows)
{
    int count = sqlite_data_count(stmt);
    PyObject *row = PyTuple_New(count);
    if (row == NULL) {
        return -1;
    }
    for (int place = 0; place < count; place++) {
        PyObject *value = column_value(stmt, place);
        if (value == NULL) {
            Py_DECREF(row);
            return -1;
        }
        PyTuple_SET_ITEM(row, place, value);
    }
    int failed = PyList_Append(rows, row);
    Py_DECREF(row);
    return failed;
}
