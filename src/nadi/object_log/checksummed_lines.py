"""Encodes a value as one line with its checksum, so that a reader detects damage.

    {"epoch": 3, …} 1f2e3d4c

Such values may be stored on a plain disk, and a single flipped digit would send a reader to the wrong position in a
log.
"""

from __future__ import annotations

from crc32c import crc32c


def line_of(value: bytes) -> bytes:
    """Return the value, a blank, and eight hexadecimal digits of its CRC-32C.

    >>> line_of(b"nadi")
    b'nadi 52e794f8\\n'
    """
    return b"%b %08x\n" % (value, crc32c(value))


def value_of(line: bytes) -> bytes | None:
    """Return the value of a line made by `line_of`; None if it is damaged or not such a line.

    >>> value_of(line_of(b"nadi")), value_of(b"nadi")
    (b'nadi', None)
    """
    value, _, checksum = line.rpartition(b" ")
    return value if checksum == b"%08x\n" % crc32c(value) else None
