#!/bin/bash
# httpx: of a response with Content-Encoding: gzip whose body has several members, it returns the first one, and drops the
# others without an error. RFC 1952 2.2: a gzip file is a series of members; pigz, bgzip and `cat a.gz b.gz` make such.
# Python's gzip module, urllib3 (requests) and gunzip return all of it.
# Expected: b"onetwo". Seen with httpx 0.28.1, beside urllib3 2.5.0.
# For users of nadi: a function's HTTP target is asked for answers that aren't compressed, and one that is fails its event.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check httpx==0.28.1 urllib3==2.5.0
"$folder/bin/python" - <<'PY'
import gzip, io, httpx, urllib3

body = gzip.compress(b"one") + gzip.compress(b"two")
headers = {"content-encoding": "gzip"}
by_httpx = httpx.Response(200, headers=headers, content=body).content
by_urllib3 = urllib3.HTTPResponse(io.BytesIO(body), headers=headers, preload_content=False).read()
print("httpx", httpx.__version__, by_httpx)
print("urllib3", urllib3.__version__, by_urllib3)
raise SystemExit((by_httpx, by_urllib3) != (b"one", b"onetwo"))
PY
