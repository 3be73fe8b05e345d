"""Standing queries match the same events as tantivy, whatever their anchors."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from nadi.model.event import whole_events
from nadi.model.framing import frame_events
from nadi.search.fields import OFFSET, InvalidEventError, fields_of, prepared
from nadi.search.percolate.query_index import Matcher, Query, counted
from nadi.search.query.bound import bind, translated
from nadi.search.query.parser import parse
from nadi.search.shards.building import META, EventRun, build, make_empty, unpack, work_folder, write_meta
from tests.search.support import FIELDS

tantivy = pytest.importorskip("tantivy", reason="search needs tantivy")
ALL = fields_of(FIELDS)
WORDS = ["alpha", "Beta", "gamma", "delta", "a1", "x-y", "naïve"]
CLOSE = ["alpha", "beta", "gamma", "y", "naïve"]
ZEROS = [0, 0.0, -0.0]
LEVELS = ["error", "err or", "E*", "info"]


def random_event(chance: random.Random) -> bytes:
    event: dict[str, object] = {}
    if chance.random() < 0.9:
        texts = [" ".join(chance.choices(WORDS, k=chance.randrange(6))) for _ in range(chance.choice([1, 1, 2]))]
        event["message"] = texts if len(texts) > 1 else texts[0]
    if chance.random() < 0.8:
        event["level"] = chance.choice([*LEVELS, ["error", "info"], None])
    if chance.random() < 0.8:
        event["ms"] = chance.randrange(-3, 4)
    if chance.random() < 0.5:
        event["at"] = f"2026-01-0{chance.randrange(1, 5)}T00:00:00.00{chance.randrange(3)}Z"
    if chance.random() < 0.5:
        event["ok"] = chance.random() < 0.5
    if chance.random() < 0.5:
        event["load"] = chance.choice([-1.5, 0, 0.5, 2])
    if chance.random() < 0.5:
        event["path"] = chance.choice(["/a", "/a/b", "/a/bc", "/d/a", ["/a", "/d"]])
    return msgspec.json.encode(event)


def random_query(chance: random.Random, depth: int = 0) -> str:
    kind = chance.randrange(15 if depth < 3 else 11)
    if kind == 11:
        return f"-({random_query(chance, depth + 1)})"
    if kind == 12:
        return "(" + " OR ".join(random_query(chance, depth + 1) for _ in range(chance.randrange(2, 4))) + ")"
    if kind > 12:
        return " ".join(f"({random_query(chance, depth + 1)})" for _ in range(chance.randrange(2, 4)))
    low, high = chance.randrange(-4, 5), chance.randrange(-4, 5)
    open_, close = chance.choice("[{"), chance.choice("]}")
    return [
        chance.choice(WORDS),
        f'"{" ".join(chance.choices(WORDS, k=chance.randrange(1, 4)))}"',
        chance.choice(["al*", "message:g*", "a*", "x*"]),
        f'level:"{chance.choice(LEVELS)}"',
        chance.choice(["level:err*", "level:E\\**", "level:i*"]),
        f"ms:{open_}{chance.choice([low, '*'])} TO {chance.choice([high, '*'])}{close}",
        f"at:{open_}2026-01-02T00:00:00.001Z TO *]",
        chance.choice(["ok:true", "ok:false", f"ms:{low}", "load:0.5", "load:0"]),
        f"load:{chance.choice(['<', '<=', '>', '>='])}{chance.choice([-1.5, 0, 0.5])}",
        f'"{chance.choice(CLOSE)} {chance.choice(CLOSE)}"~{chance.randrange(1, 5)}',
        f"path:{chance.choice(['/a', '/a/b', '/d', '/b'])}",
    ][kind]


@pytest.mark.parametrize("seed", range(6))
def test_matcher_finds_the_same_events_as_tantivy(seed: int) -> None:
    chance = random.Random(seed)
    events = [random_event(chance) for _ in range(300)]
    block, _ = whole_events(memoryview(bytes(frame_events(events))))
    built = build([EventRun(0, [block], np.arange(len(events)))], "json", ALL)
    assert built.invalid == []
    assert built.parts is not None
    texts = {f"q{number}": random_query(chance) for number in range(150)}
    queries = {name: Query(bind(parse(text).node, ALL)) for name, text in texts.items()}
    with work_folder() as folder:
        make_empty(folder, ALL)
        segments = unpack(memoryview(b"".join(built.parts)), folder, "one")
        write_meta(folder, (folder / META).read_bytes(), segments)
        searcher = prepared(tantivy.Index.open(str(folder))).searcher()
        found: dict[str, set[int]] = {}
        for name, query in queries.items():
            hits = searcher.search(translated(query.bound, ALL), 1_000).hits
            found[name] = set(searcher.fast_field_values(OFFSET, [one for _, one in hits])) if hits else set()
    offsets = block.offsets().tolist()
    unknown = Matcher(queries, "json", ALL)
    subjects = [unknown.subject(data) for data in events]
    for matcher in (unknown, Matcher(queries, "json", ALL, counted(subjects))):
        matched: dict[str, set[int]] = {name: set() for name in queries}
        for subject, offset in zip(subjects, offsets, strict=True):
            fits = matcher.matched(subject)
            assert fits == sorted(set(fits))
            for name in fits:
                matched[name].add(offset)
        for name, text in texts.items():
            assert matched[name] == found[name], text


def test_most_queries_have_an_anchor() -> None:
    texts = ["alpha beta", 'alpha OR "beta gamma"', "-alpha ms:3", "ms:>3", "al*", "-alpha", "a OR ms:>3", "level:x"]
    queries = {text: Query(bind(parse(text).node, ALL)) for text in texts}
    matcher = Matcher(queries, "json", ALL)
    assert matcher.unanchored == 4
    assert matcher.matched(matcher.subject(b'{"ms": 4}')) == ["-alpha", "a OR ms:>3", "ms:>3"]
    with pytest.raises(InvalidEventError):
        matcher.subject(b"{")


def test_the_rarest_word_is_the_anchor() -> None:
    events = [b'{"message": "common rare%d"}' % number for number in range(100)]
    queries = {f"q{number}": Query(bind(parse(f"common rare{number}").node, ALL)) for number in range(100)}
    first = Matcher(queries, "json", ALL)
    asked = 0

    def counting(fits: object) -> bool:
        nonlocal asked
        asked += 1
        return True

    for query in queries.values():
        query.fits = counting
    matcher = Matcher(queries, "json", ALL, counted(map(first.subject, events)))
    for event in events:
        matcher.matched(matcher.subject(event))
    assert asked == 100


@pytest.mark.parametrize(
    ("query", "value", "is_found"),
    [
        *((f"load:{asked}", load, True) for asked in ("0", "-0", ">=0", "[0 TO 1]", "[-1 TO -0]") for load in ZEROS),
        *((f"load:{asked}", load, False) for asked in (">0", "<0", "{0 TO 1}") for load in ZEROS),
        ('path:"/a\\\\b"', "/a\\b", True),
        ('path:"/a\\\\b"', "/a\\b/c", True),
        ('path:"/a\\\\b"', "/ab", False),
        ("path:/ab", "/a\\b", False),
        ("path:/a", "/a\\/b", False),
    ],
)  # fmt: skip
def test_matcher_distinguishes_similar_values(query: str, value: object, is_found: bool) -> None:
    event = {query.partition(":")[0]: value}
    matcher = Matcher({"q": Query(bind(parse(query).node, ALL))}, "json", ALL)
    assert matcher.matched(matcher.subject(msgspec.json.encode(event))) == ["q"] * is_found
