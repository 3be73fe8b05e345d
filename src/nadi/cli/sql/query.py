"""The streams that a query names, and which stretch of each.

    home.meters                                            all that is there when the query begins
    home.meters for slice 'week-45'                        a named slice
    home.meters for system_time as of 'monday'             up to a place
    home.meters for system_time from 'monday' to 'friday'  from a place to another
    home.meters for lake                                   its lake's table, and the stream from there
    home.meters for lake as of 'monday'                    up to a place

    latest('home.meters')                                  the latest row of each key of a stream table
    latest('home.meters') for system_time as of 'monday'   up to a place
    changes('home.meters')                                 what changed in it, also from a place to another

Places are bookmarks, times with a zone, head, tail, or texts of cuts. A stretch is a table of its own to DuckDB, which
the query is rewritten to name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import duckdb

from nadi.errors import InvalidArgumentError

_NAMES = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
VIEWS = ("latest", "changes")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stream, and what of it is asked for. scope: "" where the query doesn't name it; view: latest or changes, if not
    its rows; is_lake: with its lake's table."""

    scope: str
    stream: str
    slice_name: str | None = None
    start: str | None = None
    end: str | None = None
    view: str = ""
    is_lake: bool = False

    @property
    def table(self) -> str:
        """Its name in the rewritten query."""
        if self.is_lake:
            return f"{self.stream} for lake" + (f" as of {self.end}" if self.end is not None else "")
        what = f"{self.view} of {self.stream}" if self.view else self.stream
        if self.slice_name is not None:
            return f"{what} for slice {self.slice_name}"
        if self.start is None and self.end is None:
            return what
        return f"{what} from {self.start or 'head'} to {self.end}"


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int
    is_text: bool  # a literal of one

    def says(self, word: str) -> bool:
        return not self.is_text and self.text.lower() == word


def stretches(query: str) -> tuple[str, list[Stretch]]:
    """The query as DuckDB is to be given it, and the tables in it that may be streams. InvalidArgumentError if it isn't
    a query, or a stretch isn't written as above.

    >>> rewritten, found = stretches("select * from home.meters for slice 'week-45'")
    >>> rewritten, found[0].stream, found[0].slice_name
    ('select * from "home"."meters for slice week-45"', 'meters', 'week-45')
    """
    data = query.encode()
    words = list(_words(data))
    found: dict[tuple[str, str], Stretch] = {}
    parts: list[bytes] = []
    done = 0
    for at, word in enumerate(words):
        if word.start < done:
            continue
        view = _view(words, at)
        if view is not None:
            stretch, start, end = view[0], word.start, view[1]
        elif _is_stretch(words, at):
            name = _name_before(words, at)
            stretch, end = _stretch(name[0], name[1], words, at + 1)
            start = name[2]
        else:
            continue
        scope = stretch.scope
        found[scope, stretch.table] = stretch
        parts += [data[done:start], _quoted(scope, stretch.table).encode()]
        done = end
    last = max((word.end for word in words if word.text != ";"), default=0)
    rewritten = b"".join([*parts, data[done:last]]).decode()
    for scope, table in _tables(rewritten):
        found.setdefault((scope, table), Stretch(scope, table))
    return rewritten, list(found.values())


def _words(data: bytes) -> Iterator[_Word]:
    tokens = duckdb.tokenize(data.decode())
    for (start, kind), (end, _) in pairwise([*tokens, (len(data), duckdb.token_type.comment)]):
        if kind == duckdb.token_type.comment:
            continue
        text = data[start:end].decode().rstrip()
        yield _Word(text, start, start + len(text.encode()), kind == duckdb.token_type.string_const)


def _is_stretch(words: list[_Word], at: int) -> bool:
    return (
        words[at].says("for")
        and at + 1 < len(words)
        and any(words[at + 1].says(kind) for kind in ("slice", "system_time", "lake"))
    )


def _view(words: list[_Word], at: int) -> tuple[Stretch, int] | None:
    """What `latest('scope.table')` and the like ask for, with the stretch behind it, and where it ends."""
    view = next((view for view in VIEWS if words[at].says(view)), None)
    call = words[at + 1 : at + 4]
    if view is None or [word.text for word in (*call[:1], *call[2:])] != ["(", ")"] or not call[1].is_text:
        return None
    scope, name = _names(call[1].text[1:-1].replace("''", "'"))
    if at + 4 >= len(words) or not _is_stretch(words, at + 4):
        return Stretch(scope, name, view=view), call[2].end
    stretch, end = _stretch(scope, name, words, at + 5)
    if stretch.slice_name is not None or stretch.is_lake or (view == "latest" and stretch.start is not None):
        instead = "as of 'place'" if view == "latest" else "from 'place' to 'place'"
        raise InvalidArgumentError(f"write {view}('…') with for system_time {instead}: it is of no other stretch")
    return replace(stretch, view=view), end


def _names(text: str) -> tuple[str, str]:
    """Scope and name in a text, with quotes if one of them has a dot: home."meters.raw"."""
    *scope, name = [quoted.replace('""', '"') or plain for quoted, plain in _NAMES.findall(text)] or [""]
    return ".".join(scope), name


def _name_before(words: list[_Word], at: int) -> tuple[str, str, int]:
    """The name that ends before a word: scope, stream, and where it begins."""
    if at == 0 or words[at - 1].is_text or words[at - 1].text in ")(,;":
        raise InvalidArgumentError(
            f"before '{_around(words, at)}' there is no stream: write it as home.meters for slice 'name'"
        )
    stream, start, scope = words[at - 1], words[at - 1].start, ""
    if at >= 3 and words[at - 2].text == ".":
        scope, start = _plain(words[at - 3].text), words[at - 3].start
    return scope, _plain(stream.text), start


def _stretch(scope: str, stream: str, words: list[_Word], at: int) -> tuple[Stretch, int]:
    def text(number: int) -> str:
        if number >= len(words) or not words[number].is_text:
            raise InvalidArgumentError(
                f"after '{_around(words, at)}' there must be a name in single quotes, as in for slice 'name', "
                "for system_time as of 'name', or for system_time from 'name' to 'name'"
            )
        return words[number].text[1:-1].replace("''", "'")

    def says(number: int, word: str) -> bool:
        return number < len(words) and words[number].says(word)

    if words[at].says("slice"):
        return Stretch(scope, stream, text(at + 1)), words[at + 1].end
    if words[at].says("lake"):
        if says(at + 1, "as") and says(at + 2, "of"):
            return Stretch(scope, stream, end=text(at + 3), is_lake=True), words[at + 3].end
        return Stretch(scope, stream, is_lake=True), words[at].end
    if says(at + 1, "as") and says(at + 2, "of"):
        return Stretch(scope, stream, end=text(at + 3)), words[at + 3].end
    if says(at + 1, "from") and says(at + 3, "to"):
        return Stretch(scope, stream, start=text(at + 2), end=text(at + 4)), words[at + 4].end
    text(len(words))  # which raises
    raise AssertionError


def _around(words: list[_Word], at: int) -> str:
    return " ".join(word.text for word in words[max(0, at - 1) : at + 2])


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _quoted(scope: str, table: str) -> str:
    quoted = ['"' + name.replace('"', '""') + '"' for name in (scope, table) if name]
    return ".".join(quoted)


def _tables(query: str) -> list[tuple[str, str]]:
    """Schema and name of all tables that a query names, those that it makes itself among them."""
    with duckdb.connect() as parser:
        row = parser.execute("select json_serialize_sql(?)", [query]).fetchone()
    assert row is not None
    parsed = json.loads(row[0])
    if parsed["error"]:
        what = parsed["error_message"]
        if parsed.get("error_type") == "not implemented":
            what = "only queries can be run: select, from, or with"
        raise InvalidArgumentError(f"that is no query: {what}")
    if len(parsed["statements"]) != 1:
        raise InvalidArgumentError(f"give one query, not {len(parsed['statements'])}")
    return list(dict.fromkeys(_named(parsed)))


def _named(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        if node.get("type") == "BASE_TABLE" and not node.get("catalog_name"):
            yield node.get("schema_name") or "", node["table_name"]
        for value in node.values():
            yield from _named(value)
    elif isinstance(node, list):
        for value in node:
            yield from _named(value)
