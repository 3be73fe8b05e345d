#!/usr/bin/env bash
# fastavro: a field that the writer's schema lacks gets the reader's default as the JSON that stands in the schema, not as a
# value of the field's type: for bytes a str, for a date an int, for a decimal a str, for a record without its own defaults.
# The Avro specification says that a default is a value of the field's type, and that of the text of a default for bytes
# or fixed each character is the byte with its number. The package avro, from the makers of Avro, fills in the record's
# defaults, but makes UTF-8 of the text: of the default "\u00ff" two bytes instead of one, and a date stays a number.
# Expected: b"\xff", a date, {"x": 3}. Seen with fastavro 1.13.1 and avro 1.12.2.
# For users of nadi: its Avro serializer, scans, Spark and lakes turn defaults into values first (client/serializers/avro.py).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check fastavro==1.13.1 avro==1.12.2
"$folder/venv/bin/python" - <<'END'
import io
import json

import avro.io
import avro.schema
import fastavro

nested = {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int", "default": 3}]}
old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
new = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        {"name": "sub", "type": nested, "default": {}},
    ],
}
data = io.BytesIO()
fastavro.schemaless_writer(data, old, {"a": 1})
read = fastavro.schemaless_reader(io.BytesIO(data.getvalue()), old, new)
print("fastavro", fastavro.__version__, read)
parsed_old, parsed_new = (avro.schema.parse(json.dumps(schema)) for schema in (old, new))
decoder = avro.io.BinaryDecoder(io.BytesIO(data.getvalue()))
other = avro.io.DatumReader(parsed_old, parsed_new).read(decoder)
print("avro", other)
assert read == {"a": 1, "raw": "\u00ff", "day": 1, "sub": {}}, "fastavro behaves otherwise now"
assert other == {"a": 1, "raw": b"\xc3\xbf", "day": 1, "sub": {"x": 3}}, "avro behaves otherwise now"
END
