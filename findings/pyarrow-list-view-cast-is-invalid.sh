#!/bin/bash
# PyArrow: a cast of a list_view column to the list with the same values makes an array with an offset too few, which is
# invalid (`validate` says so), for any column that isn't empty; the cast itself raises nothing. DuckDB gives such columns
# to Arrow with its setting arrow_output_list_view.
# Expected: a list column with the same values. Seen with pyarrow 26.0.1.
# For users of nadi: its Arrow serializer and write_rows build the lists themselves (client/serializers/arrow_columns.py);
# cast no list views before you write them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyarrow==26.0.1
venv/bin/python - <<'PY'
import pyarrow as pa

given = pa.array([[1], [2, 3]], pa.list_view(pa.int64()))
given.validate(full=True)
made = given.cast(pa.list_(pa.int64()))
print("pyarrow", pa.__version__, "casts", given.to_pylist(), "from", given.type, "to", made.type)
try:
    made.validate(full=True)
except pa.ArrowInvalid as error:
    print("the cast's array is invalid:", error)
else:
    raise SystemExit(f"the cast's array is valid now: {made.to_pylist()}")
PY
