"""A value on one line with its checksum behind it, so that whoever reads it knows whether it is what was written.

    {"epoch": 3, …} 1f2e3d4c

What keeps such values may be a plain disk, and one digit that is another sends a reader to the wrong place in a log.
"""

from __future__ import annotations

from crc32c import crc32c


def line_of(value: bytes) -> bytes:
    """The value, a blank, and eight hexadecimal digits of its CRC-32C.

    >>> line_of(b"nadi")
    b'nadi 52e794f8\\n'
    """
    return b"%b %08x\n" % (value, crc32c(value))


def value_of(line: bytes) -> bytes | None:
    """What `line_of` was given; None if the line is damaged, or no such line.

    >>> value_of(line_of(b"nadi")), value_of(b"nadi")
    (b'nadi', None)
    """
    value, _, checksum = line.rpartition(b" ")
    return value if checksum == b"%08x\n" % crc32c(value) else None
