"""SQL functions that a procedure's statement may call.

Their results depend on their arguments alone, on every machine: no clock, no chance, no connection history (`changes`,
`last_insert_rowid`), no libm beyond what IEEE 754 fixes.
"""

from __future__ import annotations

from typing import Final

from procedures.numeric.functions import NAMES as _NUMERIC

_SCALARS = """abs ceil ceiling char coalesce concat concat_ws floor format glob hex if ifnull iif instr length like
    likelihood likely lower ltrim max min mod nullif octet_length printf quote replace round rtrim sign sqrt substr substring
    trim trunc typeof unhex unicode unistr unlikely upper zeroblob"""
_AGGREGATES = """avg count cume_dist dense_rank first_value group_concat lag last_value lead median nth_value ntile
    percent_rank percentile percentile_cont percentile_disc rank row_number string_agg sum total"""
_JSON = """-> ->> json json_array json_array_insert json_array_length json_error_position json_extract json_group_array
    json_group_object json_insert json_object json_patch json_pretty json_quote json_remove json_replace json_set json_type
    json_valid"""
FUNCTIONS: Final = frozenset(f"{_SCALARS} {_AGGREGATES} {_JSON}".split()) | _NUMERIC
