r"""Texts of the command line in which `\n`, `\t`, `\0` and `\x1e` stand for what can't be typed.

>>> unescaped(r"\x1e")
b'\x1e'
>>> unescaped("|")
b'|'
"""

from __future__ import annotations

import re

from nadi.errors import InvalidArgumentError

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_MEANINGS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def unescaped(text: str) -> bytes:
    """The bytes that it stands for; InvalidArgumentError for a backslash before anything else."""

    def meaning(found: re.Match[bytes]) -> bytes:
        escape = found[1]
        if escape in _MEANINGS:
            return _MEANINGS[escape]
        if len(escape) == 3:
            return bytes.fromhex(escape[1:].decode())
        known = r"\n, \t, \r, \0, \\ and \xHH"
        raise InvalidArgumentError(f"{text!r} has a backslash before {escape.decode()!r}: there are {known}")

    return _ESCAPE.sub(meaning, text.encode())
