"""What notebooks show of the client's values: small tables of HTML, readable on light and on dark, from fields alone.

A class that derives from `Displayed` is shown as a table of its fields; `table` is for several of a kind. Colours are
the notebook's own. All texts are escaped, for names and notes may have been written by anybody. Nothing is asked of a
server here: the values say what is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from nadi.naming import segment_epoch, segment_number

ROWS = 100  # of a table, and of the places of a cut
CHARS = 300  # of a text in a cell
_ENTRIES = 8  # of a list, or a mapping, in one cell
_LINE = "border:0;border-bottom:1px solid rgba(128,128,128,.3);padding:3px 14px 3px 0;background:none;text-align:"
_FAINT = "opacity:.7;font-weight:400"
_NUMBER = "font-variant-numeric:tabular-nums;white-space:nowrap"
_TEN_SECONDS = 1  # which of `nadi.model.load.WINDOWS_S` a rate is shown of


class Displayed:
    """A dataclass, or a record of msgspec, that notebooks show as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return record(self)


def record(shown: object) -> str:
    """HTML of one value: a line for each field, and for each entry of a mapping."""
    rows: list[tuple[str, object, str]] = []
    for name in _names(shown):
        value = getattr(shown, name)
        if not isinstance(value, Mapping):
            rows.append((_words(name), value, name))
            continue
        rows += [(_key(key), one, name) for key, one in list(value.items())[:ROWS]]
        if len(value) > ROWS:
            rows.append(("", f"and {len(value) - ROWS:,} more", name))
    lines = [f'<tr>{_th(left)}<td style="{_LINE}left">{_cell(name, value)}</td></tr>' for left, value, name in rows]
    return _whole(type(shown).__name__, lines, "")


def table(shown: Sequence[object], title: str = "", note: str = "") -> str:
    """HTML of several values of one class: a line for each, with a column for each field.

    >>> "None yet" in table([], note="None yet.")
    True
    """
    lines = []
    if shown:
        names = _names(shown[0])
        lines.append("<tr>" + "".join(_th(_words(name)) for name in names) + "</tr>")
    for one in shown[:ROWS]:
        cells = [(name, getattr(one, name)) for name in names]
        lines.append("<tr>" + "".join(f'<td style="{_side(value)}">{_cell(name, value)}</td>' for name, value in cells))
        lines.append("</tr>")
    more = f"and {len(shown) - ROWS:,} more" if len(shown) > ROWS else ""
    return _whole(title, lines, "; ".join(filter(None, (more, note))))


def _whole(title: str, lines: Iterable[str], note: str) -> str:
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
    """A field's name for people.

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
    """What a field's value says, by the field's name: a time, a segment, a number.

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
            return _several(name, [f"{_key(key)} {_text('', one)}" for key, one in list(value.items())[: _ENTRIES + 1]])
        case _:
            positions = getattr(value, "positions", None)  # of a cut within another value
            if isinstance(positions, Mapping):
                return _text(name, positions)
            if found := _names(value):
                return _short(", ".join(f"{_words(one)} {_text(one, getattr(value, one))}" for one in found))
            return _short(str(value))


def _several(name: str, values: Sequence[object]) -> str:
    texts = [_text(name, one) for one in values[:_ENTRIES]]
    return ", ".join(texts + (["…"] if len(values) > _ENTRIES else []))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _short(text: str) -> str:
    return text if len(text) <= CHARS else f"{text[:CHARS]}…"
