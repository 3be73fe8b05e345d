"""A folder's history as bytes: records of the files that came, changed and went, each with its length in front.

>>> written = encode({"offsets/0": b"abc"}, ["offsets/9"])
>>> files = {"offsets/9": b"old"}
>>> apply(written, files)
>>> files
{'offsets/0': b'abc'}
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, MutableMapping
from hashlib import sha256

import msgspec

from nadi.errors import NadiError

_LENGTH = struct.Struct(">I")


class _File(msgspec.Struct, frozen=True):
    path: str
    size: int
    digest: bytes


class _Header(msgspec.Struct, frozen=True):
    came: list[_File]
    went: list[str]


def encode(came: Mapping[str, bytes], went: Iterable[str]) -> bytes:
    """One record."""
    files = [_File(path, len(data), sha256(data).digest()) for path, data in came.items()]
    header = msgspec.msgpack.encode(_Header(files, list(went)))
    return b"".join((_LENGTH.pack(len(header)), header, *came.values()))


def apply(records: bytes, files: MutableMapping[str, bytes]) -> None:
    """Do to the files what the records say; NadiError if they are damaged."""
    view, at = memoryview(records), 0
    while at < len(view):
        try:
            (size,) = _LENGTH.unpack_from(view, at)
            header = msgspec.msgpack.decode(view[at + _LENGTH.size : at + _LENGTH.size + size], type=_Header)
        except (struct.error, msgspec.DecodeError) as error:
            raise NadiError(f"the mirrored checkpoint is damaged at byte {at:,}: {error}") from error
        at += _LENGTH.size + size
        for path in header.went:
            files.pop(path, None)
        for file in header.came:
            data = bytes(view[at : at + file.size])
            at += file.size
            if sha256(data).digest() != file.digest:
                raise NadiError(f"the mirrored file {file.path} is damaged: its checksum is another")
            files[file.path] = data
