#!/bin/bash
# msgspec: a time of more than six digits behind its second is rounded to the nearest microsecond when it is decoded as a
# datetime, in JSON's texts and in msgpack's timestamps alike, so the last half microsecond of a year becomes the next one.
# Python's own datetime.fromisoformat cuts such digits off, so the two read one text as two moments.
# Expected: the microsecond that the time lies in, as fromisoformat has it. Seen with msgspec 0.22.0.
# For users of nadi: scans, Spark, lakes and SQL round towards the past (client/values); the serializers Json, Msgpack and
# Struct decode by msgspec, and give its moment.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check msgspec==0.22.0
venv/bin/python - <<'PY'
import struct
from datetime import datetime

import msgspec

text = "2026-12-31T23:59:59.9999996Z"
seconds = int(datetime.fromisoformat("2026-12-31T23:59:59+00:00").timestamp())
stamp = msgspec.msgpack.encode(msgspec.msgpack.Ext(-1, struct.pack(">Iq", 999_999_600, seconds)))
found = [msgspec.json.decode(f'"{text}"'.encode(), type=datetime), msgspec.msgpack.decode(stamp, type=datetime)]
print("msgspec", msgspec.__version__, "reads", text, "as", found[0], "in JSON and", found[1], "in msgpack")
print("datetime.fromisoformat reads it as", datetime.fromisoformat(text))
raise SystemExit(0 if {one.year for one in found} == {2027} else "msgspec rounds it otherwise now")
PY
