"""In which container of a cluster a segment is: by a hash as in one server, but the controller's records are all in
container 0, so that whoever has that one can run the controller, and reaches them without a network.
"""

from __future__ import annotations

from nadi.naming import INTERNAL_SCOPE
from nadi.segmentstore.datafolder import container_number

CONTROLLER_CONTAINER = 0
_RECORDS = f"{INTERNAL_SCOPE}/_tables/"


def is_record(segment: str) -> bool:
    """Whether it is one of the tables that the controller keeps its records in.

    >>> is_record("_system/_tables/scopes"), is_record("home/meters/0.#epoch.0")
    (True, False)
    """
    return segment.startswith(_RECORDS)


def container_of(segment: str, count: int) -> int:
    """Return the number of the container, of `count`, that has the segment of that name.

    >>> container_of("_system/_tables/scopes", 8), container_of("home/meters/0.#epoch.0", 8)
    (0, 7)
    """
    return CONTROLLER_CONTAINER if is_record(segment) else container_number(segment, count)
