"""What the official Python client is asked to do as a user with credentials, perhaps over TLS; run in a
process of its own by the test beside it. Arguments: the controller's address, and who is asking."""

import asyncio
import faulthandler
import sys
import time

import pravega_client

faulthandler.dump_traceback_later(100, exit=True)
SCOPE, STREAM = "home", "official"
EVENTS = 60


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
    uri = sys.argv[1]
    manager = pravega_client.StreamManager(uri, auth_enabled=True, tls_enabled=uri.startswith("tls"))
    if sys.argv[2] == "reader":  # may not write: told so, and at once
        try:
            manager.create_stream(SCOPE, "forbidden", 1)
        except Exception as error:
            print(f"refused {error}")
        return
    assert manager.create_scope(SCOPE) is True
    assert manager.create_stream(SCOPE, STREAM, 2) is True
    writer = manager.create_writer(SCOPE, STREAM)
    for number in range(EVENTS):
        writer.write_event(f"event {number}", routing_key=f"key {number % 7}")
        time.sleep(0.2)  # longer in all than a token holds
    writer.flush()
    transactions = manager.create_transaction_writer(SCOPE, STREAM, 7)
    kept = transactions.begin_txn()
    for number in range(20):
        kept.write_event(f"kept {number}", routing_key=f"key {number % 7}")
    kept.commit()
    print("\n".join(asyncio.run(read(manager, EVENTS + 20))))


main()
