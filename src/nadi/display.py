"""HTML tables of the client's values in notebooks, readable on light and dark backgrounds.

Classes derived from `Displayed` are shown as a table of their fields; `table` shows several values of a class. Colours
are the notebook's. All texts are escaped, since names and notes are untrusted. Only fields are read; no request is
sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from nadi.naming import segment_epoch, segment_number

ROWS = 100  # maximum, in a table and for a cut's positions
CHARS = 300  # maximum in a cell
_ENTRIES = 8  # maximum of a list or mapping in a cell
_LINE = "border:0;border-bottom:1px solid rgba(128,128,128,.3);padding:3px 14px 3px 0;background:none;text-align:"
_FAINT = "opacity:.7;font-weight:400"
_NUMBER = "font-variant-numeric:tabular-nums;white-space:nowrap"
_TEN_SECONDS = 1  # index of the displayed rate in `nadi.model.load.WINDOWS_S`


class Displayed:
    """A dataclass or msgspec struct that notebooks show as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return record(self)


def record(shown: object) -> str:
    """Return the HTML of one value, with a row per field and per entry of a mapping."""
    rows: list[tuple[str, object, str]] = []
    for name in _names(shown):
        value = getattr(shown, name)
        if not isinstance(value, Mapping):
            rows.append((_label(name), value, name))
            continue
        rows += [(_key(key), entry, name) for key, entry in list(value.items())[:ROWS]]
        if len(value) > ROWS:
            rows.append(("", f"and {len(value) - ROWS:,} more", name))
    lines = [f'<tr>{_th(left)}<td style="{_LINE}left">{_cell(name, value)}</td></tr>' for left, value, name in rows]
    return _document(type(shown).__name__, lines, "")


def table(shown: Sequence[object], title: str = "", note: str = "") -> str:
    """Return the HTML of several values of one class, with a row per value and a column per field.

    >>> "None yet" in table([], note="None yet.")
    True
    """
    lines = []
    if shown:
        names = _names(shown[0])
        lines.append("<tr>" + "".join(_th(_label(name)) for name in names) + "</tr>")
    for item in shown[:ROWS]:
        cells = [(name, getattr(item, name)) for name in names]
        lines.append("<tr>" + "".join(f'<td style="{_side(value)}">{_cell(name, value)}</td>' for name, value in cells))
        lines.append("</tr>")
    more = f"and {len(shown) - ROWS:,} more" if len(shown) > ROWS else ""
    return _document(title, lines, "; ".join(filter(None, (more, note))))


def _document(title: str, lines: Iterable[str], note: str) -> str:
    parts = ['<div style="overflow-x:auto">']
    if title:
        parts.append(f'<div style="font-weight:600;padding:2px 0">{escape(title)}</div>')
    if body := "".join(lines):
        parts.append(f'<table style="border-collapse:collapse;font-size:13px;margin:0">{body}</table>')
    if note:
        parts.append(f'<div style="{_FAINT};padding:3px 0">{escape(note)}</div>')
    return "".join([*parts, "</div>"])


def _th(text: str) -> str:
    return f'<th style="{_LINE}left;{_FAINT};white-space:nowrap">{escape(text)}</th>'


def _side(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{_LINE}right;{_NUMBER}" if is_number else f"{_LINE}left"


def _names(shown: object) -> list[str]:
    if dataclasses.is_dataclass(shown):
        return [field.name for field in dataclasses.fields(shown)]
    return list(getattr(shown, "__struct_fields__", ()))


def _label(name: str) -> str:
    """Return the label of a field.

    >>> _label("lag_bytes"), _label("created_ms"), _label("segment_id")
    ('lag bytes', 'created', 'segment')
    """
    for ending in ("_ms", "_id", "_at"):
        name = name.removesuffix(ending)
    return name.replace("_per_s", "/s").replace("_", " ")


def _key(key: object) -> str:
    return _segment(key) if isinstance(key, int) else _short(str(key))


def _segment(segment_id: int) -> str:
    return f"{segment_number(segment_id)}.#epoch.{segment_epoch(segment_id)}"


def _cell(name: str, value: object) -> str:
    return escape(_text(name, value))


def _text(name: str, value: object) -> str:
    """Format a value by its type and its field's name, which tells times and segments from numbers.

    >>> _text("created_ms", 0), _text("segment_id", 1 << 32), _text("end_offset", 12345), _text("is_sealed", True)
    ('1970-01-01 00:00:00 UTC', '0.#epoch.1', '12,345', 'yes')
    """
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_ms"):
            return _time(datetime.fromtimestamp(value / 1000, UTC)) if 0 <= value < 1 << 47 else f"{value:,}"
        case int():
            return _segment(value) if name == "segment_id" else f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case datetime():
            return _time(value.astimezone(UTC))
        case list() | tuple() if name.endswith("_per_s") and len(value) > _TEN_SECONDS:
            return f"{value[_TEN_SECONDS]:,.4g} in the last 10 s"
        case list() | tuple() | frozenset():
            return _several(name, list(value))
        case Mapping():
            return _several(
                name, [f"{_key(key)} {_text('', entry)}" for key, entry in list(value.items())[: _ENTRIES + 1]]
            )
        case _:
            positions = getattr(value, "positions", None)  # a cut within another value
            if isinstance(positions, Mapping):
                return _text(name, positions)
            if fields := _names(value):
                return _short(", ".join(f"{_label(field)} {_text(field, getattr(value, field))}" for field in fields))
            return _short(str(value))


def _several(name: str, values: Sequence[object]) -> str:
    texts = [_text(name, value) for value in values[:_ENTRIES]]
    return ", ".join(texts + (["…"] if len(values) > _ENTRIES else []))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _short(text: str) -> str:
    return text if len(text) <= CHARS else f"{text[:CHARS]}…"
