#!/usr/bin/env bash
# PyIceberg makes an empty list of a null list of structs, and an empty map of a null map to structs: its append writes
# them so into the file, and its scan reads so what another wrote as null. Lists and maps of plain values stay null.
# Seen with PyIceberg 0.12.0 and PyArrow 26.0.1: the projection rebuilds such columns from offsets and values alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'pyiceberg[sql-sqlite]==0.12.0' 'pyarrow==26.0.1'
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg
from pyiceberg.catalog import load_catalog

catalog = load_catalog("c", type="sql", uri="sqlite:///c.db", warehouse="file://" + __import__("os").getcwd())
catalog.create_namespace("n")
point = pa.struct([("x", pa.int64())])
columns = {"plain": pa.list_(pa.int64()), "structs": pa.list_(point), "map": pa.map_(pa.string(), point)}
schema = pa.schema([("id", pa.int64()), *columns.items()])
rows = pa.Table.from_pylist([{"id": 1}], schema)  # all three are null
assert all(rows[name].null_count == 1 for name in columns)

written = catalog.create_table("n.written", schema)
written.append(rows)
(task,) = written.scan().plan_files()
in_file = pq.read_table(task.file.file_path.removeprefix("file://")).to_pylist()[0]

read = catalog.create_table("n.read", schema)
pq.write_table(rows, "others.parquet")  # whose nulls are nulls
read.add_files([f"file://{__import__('os').getcwd()}/others.parquet"])
in_scan = read.scan().to_arrow().to_pylist()[0]

print(f"PyIceberg {pyiceberg.__version__}, PyArrow {pa.__version__}")
print("the file that append wrote of nulls:", in_file)
print("what scan reads of a file of nulls: ", in_scan)
expected = {"id": 1, "plain": None, "structs": [], "map": []}
assert in_file == {**expected}, "append has changed"
assert in_scan == {**expected}, "scan has changed"
PYTHON
