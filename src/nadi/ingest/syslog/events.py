"""What becomes of a message in a stream: its event, and its routing key.

What a syslog message says: RFC 5424's fields, or those that an older one has (RFC 3164), told apart by the version
that follows the priority.

Whatever is neither is a message all the same, whose text is all there is: senders have been free with the older format
for decades, and nothing that came is thrown away.

>>> from datetime import datetime, UTC
>>> now = datetime(2026, 10, 12, tzinfo=UTC)
>>> new = parsed(b'<34>1 2026-10-11T22:14:15.003Z kitchen su 7 ID47 [a@1 b="c"] no', now)
>>> new.time, new.host, new.fields["severity"], new.fields["data"], new.fields["message"]
('2026-10-11T22:14:15.003Z', 'kitchen', 'crit', {'a@1': {'b': 'c'}}, 'no')
>>> old = parsed(b"<13>Oct 11 22:14:15 hall cron[8]: ran", now)
>>> old.host, old.app, old.fields["message"]
('hall', 'cron', 'ran')
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from nadi.ingest.syslog.choices import Form, Key

_FACILITIES_BY_NUMBER = """
    kern user mail daemon auth syslog lpr news uucp cron authpriv ftp ntp audit alert clock
    local0 local1 local2 local3 local4 local5 local6 local7
"""
_FACILITIES = _FACILITIES_BY_NUMBER.split()
_SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")

_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_PRIORITY = re.compile(r"<(0|[1-9]\d{0,2})>", re.ASCII)
_NEW = re.compile(rf"1 (-|{_STAMP}) (\S{{1,255}}) (\S{{1,48}}) (\S{{1,128}}) (\S{{1,32}})(?: |\Z)", re.ASCII)
_NAME = r'[^\s=\]"]{1,255}'  # RFC 5424 has 32; some senders take more
_PARAMETER = rf'({_NAME})="([^"\\]*(?:\\.[^"\\]*)*)"'
_PARAMETERS = re.compile(_PARAMETER, re.DOTALL)
_ELEMENT = re.compile(rf'\[({_NAME})((?: {_NAME}="[^"\\]*(?:\\.[^"\\]*)*")*) ?\]', re.DOTALL)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_ESCAPED = re.compile(r'\\(["\\\]])')
_OLD = re.compile(rf"({_STAMP}|[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?) ", re.ASCII)
# A name or an address, or several, of relays: what ends with a colon is a tag, and a time of day is text.
_HOST = re.compile(r"(?!\d\d?:\d\d:)([\w.:%/@-]{1,255}(?<!:)) ", re.ASCII)
# RFC 3164 has letters and digits; names of programs have a few marks too, and a number alone belongs to the text. What
# goes on behind a colon as an address, a path or a time does is text.
_TAG_CHARS = r"[\w.%/+()@-]"
_TAG = re.compile(
    rf"(?=[\d.%/+()@_-]*[A-Za-z])({_TAG_CHARS}{{1,128}})(?:\[([^\s\[\]]{{1,128}})\]:|:(?![\d:/\\])) ?", re.ASCII
)
_BOM = "\ufeff"
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Message:
    """time: what it says, in the form of RFC 3339; None if nothing. fields: all else that it says, and its text."""

    time: str | None
    host: str | None
    app: str | None
    fields: dict[str, Any]


def parsed(message: bytes, now: datetime) -> Message:
    """now: a time without a year has the one that brings it closest to it; one without a zone has this machine's."""
    text = message.decode("utf-8", "replace")
    found = _PRIORITY.match(text)
    if found is None or (priority := int(found[1])) >= 8 * len(_FACILITIES):
        return Message(None, None, None, {"message": text})
    fields: dict[str, Any] = {"facility": _FACILITIES[priority // 8], "severity": _SEVERITIES[priority % 8]}
    return _new(text, found.end(), fields) or _old(text, found.end(), fields, now)


def _new(text: str, at: int, fields: dict[str, Any]) -> Message | None:
    found = _NEW.match(text, at)
    if found is None or (found[1] != _NONE and not _is_time(found[1])):
        return None
    for name, value in zip(("host", "app", "procid", "msgid"), found.groups()[1:], strict=True):
        if value != _NONE:
            fields[name] = value
    at = found.end()
    if text.startswith(_NONE, at) and text[at + 1 : at + 2] in ("", " "):
        at += 2
        if found[5] == _NONE and text.startswith(" ", at):
            at += 1  # of rsyslog: its text of a local message begins with the space behind the tag, without id and data
    else:
        data, end = _data(text, at)
        if data and text[end : end + 1] in ("", " "):  # else it is damaged, and part of the text as it came
            fields["data"], at = data, end + 1
    fields["message"] = text[at:].removeprefix(_BOM)
    time = None if found[1] == _NONE else found[1]
    return Message(time, fields.get("host"), fields.get("app"), fields)


def _data(text: str, at: int) -> tuple[dict[str, dict[str, Any]], int]:
    """Structured data; a name that comes several times has a list of values."""
    data: dict[str, dict[str, Any]] = {}
    while (element := _ELEMENT.match(text, at)) is not None:
        values = data.setdefault(element[1], {})
        for name, value in _PARAMETERS.findall(element[2]):
            value = _ESCAPED.sub(r"\1", value)
            if name not in values:
                values[name] = value
            elif isinstance(values[name], list):
                values[name].append(value)
            else:
                values[name] = [values[name], value]
        at = element.end()
    return data, at


def _old(text: str, at: int, fields: dict[str, Any], now: datetime) -> Message:
    found = _OLD.match(text, at)
    time = _time_of(found[1], now) if found is not None else None
    if found is None or time is None:
        return Message(None, None, None, {**fields, "message": text[at:]})
    at = found.end()
    host = _HOST.match(text, at)
    if host is not None:
        fields["host"], at = host[1], host.end()
    tag = _TAG.match(text, at)
    if tag is not None:
        fields["app"], at = tag[1], tag.end()
        if tag[2]:
            fields["procid"] = tag[2]
    fields["message"] = text[at:]
    return Message(time, fields.get("host"), fields.get("app"), fields)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _time_of(stamp: str, now: datetime) -> str | None:
    if stamp[0].isdigit():
        return stamp if _is_time(stamp) else None
    stamp, _, fraction = stamp.partition(".")
    possible = [time for year in (-1, 0, 1) if (time := _in_year(stamp, now.year + year)) is not None]
    if not possible:
        return None
    text = min(possible, key=lambda time: abs(time - now)).isoformat(timespec="seconds")
    return f"{text[:19]}.{fraction}{text[19:]}" if fraction else text


def _in_year(stamp: str, year: int) -> datetime | None:
    month = _MONTHS.find(stamp[:3])
    try:
        return datetime(
            year, month // 3 + 1, int(stamp[4:6]), int(stamp[7:9]), int(stamp[10:12]), int(stamp[13:15])
        ).astimezone()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Making:
    """How events are made.

    >>> from datetime import UTC
    >>> Making(Form.RAW).event(b"<13>hello", "10.0.0.1", datetime.now(UTC))
    (b'<13>hello', '10.0.0.1')
    """

    form: Form = Form.JSON
    key: Key = Key.HOST

    def event(self, message: bytes, address: str, now: datetime) -> tuple[bytes, str | None]:
        """The event, and its key. now: when it came, in UTC."""
        said = parsed(message, now)
        key: str | None = None
        if self.key is not Key.NONE:
            key = address if self.key is Key.ADDRESS else said.host or address
            if self.key is Key.APP:
                key = said.app or key
        if self.form is Form.RAW:
            return message, key
        received = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
        event: dict[str, Any] = {"time": said.time or received, "received": received, "from": address, **said.fields}
        if not _is_text(message):
            event["raw"] = base64.b64encode(message).decode()  # as it came, for it isn't UTF-8
        return msgspec.json.encode(event), key


def _is_text(message: bytes) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
