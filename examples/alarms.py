"""A worker: reads `home/degrees`, and writes an alarm for each reading above the limit. Start it several times.

nadi scope create home && nadi stream create home degrees && nadi stream create home alarms
python -m examples.alarms tcp://127.0.0.1:9090 &
echo '{"room": "attic", "degrees": 31}' | nadi write home degrees
nadi tail home alarms
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from nadi.process import Processor, StreamEvent, run

LIMIT = 30.0


def alarm(event: StreamEvent) -> Iterator[tuple[str, bytes]]:
    """Yield the alarm for a reading, if it is above the limit."""
    reading = json.loads(event.data)
    if reading["degrees"] > LIMIT:
        yield reading["room"], json.dumps({"room": reading["room"], "at": event.offset}).encode()


PROCESSOR = Processor("home", "degrees", "alarms", alarm, output="alarms")

if __name__ == "__main__":
    run(PROCESSOR, sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:9090")
