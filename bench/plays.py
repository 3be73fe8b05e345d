"""Full-text search in Shakespeare's plays: the speed of indexing speeches, and of queries for their words."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec

import nadi
from bench.measure import Figure
from bench.searching import QUERIES, SCOPE, indexed
from examples.plays.scanning import words
from examples.plays.speeches import Speech
from examples.plays.speeches import plays as speeches
from nadi.client.aio import StreamManager

STREAM = "speeches"
FIELDS = "text:text,play:keyword,speaker:keyword,act:keyword,scene:text"
EDITIONS = 10


def plays(folder: Path) -> list[Figure]:
    """Index Shakespeare's speeches, `EDITIONS` times, in a stream of four segments with the play as routing key, and
    query for their words."""
    return asyncio.run(_plays(folder, [(play, one) for play, some in speeches().items() for one in some]))


async def _plays(folder: Path, known: list[tuple[str, Speech]]) -> list[Figure]:
    events, keys = [msgspec.json.encode(one) for _, one in known], [play for play, _ in known]
    count = EDITIONS * len(known)
    with nadi.embedded(folder / "data") as server:
        async with StreamManager(server.controller_uri) as manager:
            await manager.create_scope(SCOPE)
            await manager.create_stream(SCOPE, STREAM, 4)
            writer = await manager.create_writer(SCOPE, STREAM)
            for _ in range(EDITIONS):
                await writer.write_many(events, keys)
            await writer.flush()
            async with indexed(manager, server.controller_uri, folder, STREAM, FIELDS, _about(known)) as found:
                pass
    return [
        Figure("speeches indexed", count / found.took_s, "a second"),
        Figure("speeches indexed, by what the indexer spent", count / found.spent_s, "a second of a core"),
        Figure("index size, of a speech", found.size_bytes / count, "bytes"),
        Figure("speech size", sum(map(len, events)) / len(events), "bytes"),
        *found.waits(),
    ]


def _about(known: list[tuple[str, Speech]], seed: int = 1) -> list[str]:
    """Return queries, each for words of one of the speeches."""
    chance, made = random.Random(seed), list[str]()
    while len(made) < QUERIES:
        _, speech = chance.choice(known)
        said = words(speech.text)
        if len(said) < 6:
            continue
        at = chance.randrange(len(said) - 4)
        first, second = said[at], said[at + 1]
        made.append(
            (
                f"text:({first} {said[at + 4]})",
                f'text:{first} speaker:"{speech.speaker}"',
                f'text:"{first} {second}"',
                f'text:"{first} {said[at + 4]}"~8',
                f"text:({second} -{first})",
            )[len(made) % 5]
        )
    return made
