"""What the official Python client is asked to do; run in a process of its own by the test beside it."""

import asyncio
import faulthandler
import sys

import pravega_client

faulthandler.dump_traceback_later(90, exit=True)
SCOPE, STREAM = "compatibility", "official"


async def read(manager: object, count: int) -> list[str]:
    group = manager.create_reader_group("readers", SCOPE, STREAM)  # type: ignore[attr-defined]
    reader = group.create_reader("reader-1")
    found: list[str] = []
    while len(found) < count:
        segment = await reader.get_segment_slice_async()
        for event in segment:
            found.append(event.data().decode())
        reader.release_segment(segment)
    reader.reader_offline()
    return found


def main() -> None:
    manager = pravega_client.StreamManager(sys.argv[1])
    assert manager.create_scope(SCOPE) is True
    assert manager.create_scope(SCOPE) is False
    assert manager.create_stream(SCOPE, STREAM, 2) is True
    writer = manager.create_writer(SCOPE, STREAM)
    for number in range(200):
        writer.write_event(f"event {number}", routing_key=f"key {number % 7}")
    writer.flush()
    transactions = manager.create_transaction_writer(SCOPE, STREAM, 7)
    kept = transactions.begin_txn()
    for number in range(50):
        kept.write_event(f"kept {number}", routing_key=f"key {number % 7}")
    kept.commit()
    dropped = transactions.begin_txn()
    dropped.write_event("dropped", routing_key="key 1")
    dropped.abort()
    found = asyncio.run(read(manager, 250))
    print("\n".join(found))
    assert SCOPE in manager.list_scope()


main()
