"""Messages taken out of a connection's bytes (RFC 6587).

A connection has one of two framings, which its first bytes tell: a length before each message ("11 <34>1 …", octet
counting), or an end behind it, a newline or a NUL. It keeps to it: so a line that begins with a number isn't taken for
a length.

>>> Framing(100).feed(b"5 <1>ab6 <2>c\\nd7 <3>")
[b'<1>ab', b'<2>c\\nd']
>>> Framing(100).feed(b"<1>ab\\n2 cd\\n<3>")
[b'<1>ab', b'2 cd']
"""

from __future__ import annotations

import re
import zlib

_COUNTED = re.compile(rb"[1-9][0-9]{0,8} (?:<|zx[\x01\x5e\x9c\xda])")
_COUNTED_PACKED = re.compile(rb"[1-9][0-9]{0,8} (?=zx)")
_MAYBE_COUNTED = re.compile(rb"[1-9][0-9]{0,8}(?: z?x?)?|")
_LENGTH = re.compile(rb"([1-9][0-9]{0,8}) ")
_LENGTH_CHARS = 10
_END = re.compile(rb"[\n\0]")
_TRAILERS = b"\r\n\0"
_MAYBE_PACKED = (b"x", b"z", b"zx", b"\x16", b"\x1f")


def packed(data: bytes) -> str | None:
    """Return why bytes that begin so can't be syslog: they are compressed, or TLS. None of what may be.

    >>> packed(zlib.compress(b"<13>started")) is None, packed(b"x^2 > y"), packed(b"<13>zx") is None
    (False, None, True)
    """
    if data.startswith(b"\x16\x03"):
        return "it begins with TLS: send it to --tls, or without encryption"
    if data.startswith(b"\x1f\x8b") or _is_zlib(data.removeprefix(b"z")):
        return "it is compressed (ziplevel or compression.mode in rsyslog): send it without"
    return None


def _is_zlib(data: bytes) -> bool:
    if len(data) < 2 or data[0] != 0x78 or int.from_bytes(data[:2]) % 31:
        return False
    if data[:2] == b"x^" and data[:64].isascii():
        return False
    try:
        zlib.decompressobj().decompress(data[:64], 1)
    except zlib.error:
        return False
    return True


class Framing:
    """Of one connection. What a message has beyond `most_bytes` is dropped as it comes, and `cut` counts such ones.
    broken: why nothing can be told from its bytes any more."""

    def __init__(self, most_bytes: int) -> None:
        self.cut = 0
        self.broken: str | None = None
        self._most_bytes = most_bytes
        self._rest = b""
        self._is_counted: bool | None = None  # not known before its first bytes
        self._skip = 0  # bytes of a counted message that is cut
        self._skips_line = False

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now, without their ends. None if it is `broken`, but for those before."""
        if self.broken is not None:
            return []
        data, self._rest = self._rest + data if self._rest else data, b""
        if self._is_counted is None:
            if _MAYBE_COUNTED.fullmatch(data) or data in _MAYBE_PACKED:
                self._rest = data
                return []
            self.broken = packed(data)
            if self.broken is not None:
                return []
            self._is_counted = _COUNTED.match(data) is not None
        found, at = self._counted(data) if self._is_counted else self._lines(data)
        self._rest = data[at:]
        return [message for one in found if (message := one.rstrip(_TRAILERS))]

    def end(self) -> list[bytes]:
        """The peer has ended the connection: a last line needs no end. Half of a counted message is none."""
        rest, self._rest = self._rest.rstrip(_TRAILERS), b""
        return [rest] if rest and not self._is_counted and not self._skips_line else []

    def _counted(self, data: bytes) -> tuple[list[bytes], int]:
        found: list[bytes] = []
        at = min(self._skip, len(data))
        self._skip -= at
        while at < len(data):
            match = _LENGTH.match(data, at)
            if match is None:
                if len(data) - at < _LENGTH_CHARS and data[at:].isdigit() and data[at : at + 1] != b"0":
                    break
                self.broken = f"a message has no length before it: it begins with {data[at : at + 1]!r}"
                return found, len(data)
            size, start = int(match[1]), match.end()
            kept = min(size, self._most_bytes)
            if data[start : start + 2] == b"zx" and (reason := packed(data[start : start + kept])) is not None:
                self.broken = reason
                return found, len(data)
            if len(data) < start + kept:
                break
            found.append(data[start : start + kept])
            at = min(start + size, len(data))
            if size > kept:
                self.cut += 1
                self._skip = start + size - at
        return found, at

    def _lines(self, data: bytes) -> tuple[list[bytes], int]:
        found: list[bytes] = []
        at = 0
        while at < len(data):
            if self._skips_line:
                end = _END.search(data, at)
                if end is None:
                    return found, len(data)
                self._skips_line, at = False, end.end()
                continue
            end = _END.search(data, at, at + self._most_bytes + 1)
            counted = _COUNTED_PACKED.match(data, at)  # rsyslog's packed messages are, also among lines
            if counted is not None and (reason := packed(data[counted.end() :])) is not None:
                self.broken = reason
                return found, len(data)
            if end is not None:
                found.append(data[at : end.start()])
                at = end.end()
            elif len(data) - at > self._most_bytes:
                found.append(data[at : at + self._most_bytes])
                self._skips_line = True
                self.cut += 1
                at += self._most_bytes
            else:
                break
        return found, at
