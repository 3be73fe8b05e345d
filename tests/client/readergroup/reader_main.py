"""`python -m tests.client.readergroup.reader_main URI GROUP READER DELIVERY WAY FILE`: a reader that appends each event
to a file before it reads the next, until it is killed.
"""

from __future__ import annotations

import sys

import nadi
from nadi.model.delivery import check_delivery


def main(uri: str, group: str, name: str, delivery: str, way: str, path: str) -> None:
    kind = check_delivery(delivery)
    with nadi.StreamManager(uri) as manager, open(path, "ab", buffering=0) as file:
        reader = manager.reader_group_manager("sc").get_reader_group(group).create_reader(name, delivery=kind)
        for read in reader if way == "events" else reader.blocks():
            for event in [read.event or b""] if way == "events" else read.events:
                file.write(event + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
