"""HTML tables of the client's values, for notebooks.

A class that derives from `Displayed` is shown as a table of its fields; `table` renders several values of one class.
Colours come from the notebook's theme. All text is escaped: names and notes are untrusted. No request is sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from nadi.naming import segment_epoch, segment_number

ROWS = 100  # rows of a table, and positions of a cut
CHARS = 300  # characters in a cell
_ENTRIES = 8  # entries of a list or mapping in one cell
_LINE = "border:0;border-bottom:1px solid rgba(128,128,128,.3);padding:3px 14px 3px 0;background:none;text-align:"
_FAINT = "opacity:.7;font-weight:400"
_NUMBER = "font-variant-numeric:tabular-nums;white-space:nowrap"
_TEN_SECONDS = 1  # index in `nadi.model.load.WINDOWS_S` of the rate shown


class Displayed:
    """A dataclass or msgspec record that notebooks show as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return record(self)


def record(shown: object) -> str:
    """Return HTML of one value, with a row for each field and each entry of a mapping."""
    rows: list[tuple[str, object, str]] = []
    for name in _names(shown):
        value = getattr(shown, name)
        if not isinstance(value, Mapping):
            rows.append((_words(name), value, name))
            continue
        rows += [(_key(key), entry, name) for key, entry in list(value.items())[:ROWS]]
        if len(value) > ROWS:
            rows.append(("", f"and {len(value) - ROWS:,} more", name))
    lines = [f'<tr>{_th(label)}<td style="{_LINE}left">{_cell(name, value)}</td></tr>' for label, value, name in rows]
    return _layout(type(shown).__name__, lines, "")


def table(shown: Sequence[object], title: str = "", note: str = "") -> str:
    """Return HTML of several values of one class, with a row for each value and a column for each field.

    >>> "None yet" in table([], note="None yet.")
    True
    """
    lines = []
    if shown:
        names = _names(shown[0])
        lines.append("<tr>" + "".join(_th(_words(name)) for name in names) + "</tr>")
    for row in shown[:ROWS]:
        cells = [(name, getattr(row, name)) for name in names]
        lines.append("<tr>" + "".join(f'<td style="{_side(cell)}">{_cell(name, cell)}</td>' for name, cell in cells))
        lines.append("</tr>")
    more = f"and {len(shown) - ROWS:,} more" if len(shown) > ROWS else ""
    return _layout(title, lines, "; ".join(filter(None, (more, note))))


def _layout(title: str, lines: Iterable[str], note: str) -> str:
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


def _words(name: str) -> str:
    """Return a field's name as a column title.

    >>> _words("bytes_behind"), _words("created_ms"), _words("segment_id")
    ('bytes behind', 'created', 'segment')
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
    """Format a field's value according to its name: a time, a segment, a number.

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
            positions = getattr(value, "positions", None)  # of a cut within another value
            if isinstance(positions, Mapping):
                return _text(name, positions)
            if names := _names(value):
                return _short(", ".join(f"{_words(entry)} {_text(entry, getattr(value, entry))}" for entry in names))
            return _short(str(value))


def _several(name: str, values: Sequence[object]) -> str:
    texts = [_text(name, value) for value in values[:_ENTRIES]]
    return ", ".join(texts + (["…"] if len(values) > _ENTRIES else []))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _short(text: str) -> str:
    return text if len(text) <= CHARS else f"{text[:CHARS]}…"
