"""A reader in a process of its own, to be killed: notes each event when it is done with it.

Arguments: controller, scope, group, reader's id, file. A line is `time number segment offset`, or
`time checkpoint name`; it is written at once, before the next event is asked for.
"""

from __future__ import annotations

import os
import sys
import time

from nadi.client import StreamManager
from nadi.errors import ReaderOfflineError


def main(uri: str, scope: str, group: str, reader_id: str, path: str) -> None:
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with StreamManager(uri) as manager:
        reader = manager.reader_group_manager(scope).get_reader_group(group).create_reader(reader_id)
        try:
            for read in reader:
                if read.event is not None:
                    text = f"{read.event.decode()} {read.segment} {read.offset}"
                else:
                    text = f"checkpoint {read.checkpoint}"
                os.write(notes, f"{time.monotonic_ns()} {text}\n".encode())
        except ReaderOfflineError:
            return  # it was stopped for so long that the others have its segments
        reader.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
