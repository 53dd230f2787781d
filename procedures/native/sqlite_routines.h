/* The routines of the SQLite that APSW holds, reached without linking it.
 *
 * APSW's SQLite exports no symbols. What any SQLite gives to an extension that it loads is a table of pointers whose order never
 * changes (https://sqlite.org/c3ref/load_extension.html: members are only ever appended), so the places below are constants.
 * `procedures/native/__init__.py` loads this module once as such an extension, and compares the version that it then states.
 */
#ifndef CMDLOG_SQLITE_ROUTINES_H
#define CMDLOG_SQLITE_ROUTINES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
typedef struct sqlite3_mutex sqlite3_mutex;
typedef void (*Routine)(void);

enum { SQLITE_OK = 0, SQLITE_ROW = 100, SQLITE_DONE = 101, SQLITE_PREPARE_PERSISTENT = 1 };
enum { SQLITE_INTEGER = 1, SQLITE_FLOAT = 2, SQLITE_TEXT = 3, SQLITE_BLOB = 4, SQLITE_NULL = 5, SQLITE_UTF8 = 1 };
enum { SQLITE_STMTSTATUS_VM_STEP = 4 };

extern const Routine *sqlite_routines; /* NULL until the module was loaded as an extension of SQLite */

#define ROUTINE(place, type) ((type)sqlite_routines[place])
#define sqlite_bind_double ROUTINE(3, int (*)(sqlite3_stmt *, int, double))
#define sqlite_bind_int64 ROUTINE(5, int (*)(sqlite3_stmt *, int, int64_t))
#define sqlite_bind_null ROUTINE(6, int (*)(sqlite3_stmt *, int))
#define sqlite_bind_parameter_count ROUTINE(7, int (*)(sqlite3_stmt *))
#define sqlite_column_blob ROUTINE(19, const void *(*)(sqlite3_stmt *, int))
#define sqlite_column_bytes ROUTINE(20, int (*)(sqlite3_stmt *, int))
#define sqlite_column_double ROUTINE(27, double (*)(sqlite3_stmt *, int))
#define sqlite_column_int64 ROUTINE(29, int64_t (*)(sqlite3_stmt *, int))
#define sqlite_column_text ROUTINE(36, const char *(*)(sqlite3_stmt *, int))
#define sqlite_column_type ROUTINE(38, int (*)(sqlite3_stmt *, int))
#define sqlite_data_count ROUTINE(48, int (*)(sqlite3_stmt *))
#define sqlite_errmsg ROUTINE(53, const char *(*)(sqlite3 *))
#define sqlite_finalize ROUTINE(57, int (*)(sqlite3_stmt *))
#define sqlite_libversion_number ROUTINE(67, int (*)(void))
#define sqlite_reset ROUTINE(77, int (*)(sqlite3_stmt *))
#define sqlite_step ROUTINE(94, int (*)(sqlite3_stmt *))
#define sqlite_clear_bindings ROUTINE(118, int (*)(sqlite3_stmt *))
#define sqlite_mutex_leave ROUTINE(133, void (*)(sqlite3_mutex *))
#define sqlite_mutex_try ROUTINE(134, int (*)(sqlite3_mutex *))
#define sqlite_db_mutex ROUTINE(164, sqlite3_mutex *(*)(sqlite3 *))
#define sqlite_extended_errcode ROUTINE(166, int (*)(sqlite3 *))
#define sqlite_stmt_status ROUTINE(170, int (*)(sqlite3_stmt *, int, int))
#define sqlite_bind_blob64 ROUTINE(193, int (*)(sqlite3_stmt *, int, const void *, uint64_t, void (*)(void *)))
#define sqlite_bind_text64 ROUTINE(194, int (*)(sqlite3_stmt *, int, const char *, uint64_t, void (*)(void *), unsigned char))
#define sqlite_prepare_v3 ROUTINE(217, int (*)(sqlite3 *, const char *, int, unsigned int, sqlite3_stmt **, const char **))
#define sqlite_changes64 ROUTINE(253, int64_t (*)(sqlite3 *))
#define sqlite_error_offset ROUTINE(256, int (*)(sqlite3 *))

#endif
