#!/bin/bash
# CloudEvents' SDK for JavaScript: in binary mode it writes attributes into HTTP headers as they are. The HTTP binding of
# CloudEvents 1.0.2 (3.1.3.2) says that a space, a double quote, a percent sign, and each byte of UTF-8 outside of ASCII
# MUST be percent-encoded, and that receivers MUST unquote and decode. So of the subject 100%25 a receiver that follows the
# binding reads 100%, of one in double quotes its inside, an ü goes as a byte of Latin-1, which such a receiver MUST reject,
# and for a € Node's fetch throws before anything is sent. The SDK for Python encodes all of these.
# Expected: ce-subject: K%C3%BCche%20100%2525. Seen with cloudevents 10.0.0 (npm) and 2.2.0 (PyPI).
# For users of nadi: send attributes that aren't plain ASCII in structured mode (HTTP.structured).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y > /dev/null
npm install --silent --no-audit --no-fund cloudevents@10.0.0
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check cloudevents==2.2.0
cat > run.js <<'JS'
const { CloudEvent, HTTP } = require("cloudevents");
const event = new CloudEvent({ id: "1", source: "/s", type: "t", subject: "Küche 100%25" });
process.stdout.write(HTTP.binary(event).headers["ce-subject"]);
JS
cat > run.py <<'PY'
from cloudevents.core.bindings.http import to_binary_event
from cloudevents.core.v1.event import CloudEvent
event = CloudEvent({"id": "1", "source": "/s", "type": "t", "subject": "Küche 100%25"})
print(to_binary_event(event).headers["ce-subject"], end="")
PY
javascript=$(node run.js)
python=$(python/bin/python run.py)
echo "JavaScript: ce-subject: $javascript"
echo "Python:     ce-subject: $python"
[ "$javascript" = "Küche 100%25" ] && [ "$python" = "K%C3%BCche%20100%2525" ]
