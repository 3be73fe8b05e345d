"""The official package writes a byte stream, then reads what nadi's client wrote: `official_bytes.py URI STEP`.

In a process of its own, for its native calls hold the interpreter's lock while they wait.
"""

from __future__ import annotations

import sys
from typing import Any

import pravega_client


def main(uri: str, step: str) -> None:
    manager: Any = pravega_client.StreamManager(uri)
    if step == "write":
        manager.create_scope("bytes")
        manager.create_stream("bytes", "official", 1)
        manager.create_stream("bytes", "nadi", 1)
        stream: Any = manager.create_byte_stream("bytes", "official")
        stream.write(bytes(range(256)) * 1000)
        stream.flush()
    else:
        stream = manager.create_byte_stream("bytes", "nadi")
        found = bytearray()
        while len(found) < 256_000:
            buffer = bytearray(100_000)
            count = stream.readinto(buffer)
            found += buffer[:count]
        print(found == bytes(range(256)) * 1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
