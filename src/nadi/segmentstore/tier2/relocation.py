"""Moving the chunks of a stopped data folder to a store elsewhere, or back; and claiming a store anew.

Everything is copied and read back before the folder says that it is there: one durable line (`whereabouts`) is the
moment. Until then the folder is served as it was, and from then on by the new place; only afterwards are the originals
deleted. Each step may be killed, and done again: what was copied before is compared, not copied again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from nadi.engines.failures import RefusedError
from nadi.engines.identity import TURN
from nadi.engines.proof import PROOF
from nadi.engines.urls import folder_of
from nadi.errors import DataFolderError, NotFoundError, StoreError, UnavailableError
from nadi.runtime import Runtime
from nadi.segmentstore.datafolder import ELSEWHERE, TIER2, begin
from nadi.segmentstore.tier1.disk import sync_folder
from nadi.segmentstore.tier2 import claim as claims
from nadi.segmentstore.tier2 import records
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.claim import Claim
from nadi.segmentstore.tier2.whereabouts import (
    Tier2,
    Whereabouts,
    check_outside,
    find,
    has_chunks,
    normal,
)

AT_ONCE = 4  # objects, each entirely in memory
Told = Callable[[str, int, int], None]  # what is done, and how many bytes of how many


async def move_out(folder: Path, to: Tier2, runtime: Runtime, told: Told) -> int:
    """Move the chunks in the folder to that store; return how many bytes it has of them.

    Raises:
        DataFolderError: they are in another store.
        InvalidArgumentError: it isn't the URL of a store that can have them.
        StoreError: it is another's, holds something else, or doesn't keep what it is given.
        StorageFullError, UnavailableError: it fails; the move can be done again, and goes on where it was.
    """
    url, found = normal(to.url), find(folder)
    check_outside(folder, url)
    if found is not None and found.claimed and found.url != url:
        raise DataFolderError(
            f"the chunks of {folder} are in {found.url}: move them back first; or, while no server runs, copy all that "
            f"is there to {url}, and then `nadi tier2 claim {folder} --tier2 {url}`"
        )
    _check_not_half_back(folder, found)
    if found is None or found.url != url:
        found = Whereabouts(url, {}, runtime.unique())
    here = ChunkStore.in_folder(folder / TIER2, runtime)
    claim = Claim(folder, found.told(to.options), to.options, runtime, is_settled=False)
    async with _Claimed(claim):
        there = ChunkStore.of(claim, runtime)
        if not claim.where.claimed:
            size = await _copy(here, there, told)
            await claim.say(replace(claim.where, claimed=True, left=here.url))
        else:
            size = sum((await _names(there)).values())
        await _delete(here, told)
        await claim.say(replace(claim.where, left=""))
    return size


async def move_back(folder: Path, options: dict[str, str], runtime: Runtime, told: Told) -> int:
    """The other way round; options: as the store is reached.

    Raises: as `move_out`.
    """
    found = find(folder)
    if found is None or not (found.claimed or found.left):
        raise DataFolderError(f"the chunks of {folder} are in the folder already")
    here = ChunkStore.in_folder(folder / TIER2, runtime)
    claim = Claim(folder, found, {**found.options, **options}, runtime, is_settled=False)
    async with _Claimed(claim):
        there = ChunkStore.of(claim, runtime)
        if claim.where.claimed:
            await _copy(there, here, told)
            await claim.say(replace(claim.where, claimed=False, left=claim.url))
        size = sum((await _names(here)).values())
        await _delete(there, told)
        await claim.give_up()
    await runtime.in_thread(_forget, folder)
    return size


async def claim_anew(folder: Path, at: Tier2 | None, runtime: Runtime, containers: int | None = None) -> str:
    """Make the store the folder's, whoever had it; return its URL. at: None is the one that the folder names.
    containers: of a folder that is lost, and is begun anew for a repair to fill.

    Raises:
        DataFolderError: the folder names none, has chunks of its own, or the store has more containers.
        InvalidArgumentError: it isn't the URL of a store that can have them.
        StoreError: it has no chunks, or is a cluster's, or another folder's.
        UnavailableError: it isn't known whether it was claimed; it may be done again.
    """
    found = find(folder)
    named = found.url if found is not None and found.claimed else ""
    if at is not None:
        url, options = normal(at.url), at.options
        check_outside(folder, url)
        _check_not_half_back(folder, found)
        if found is None or not found.claimed:
            _check_has_none(folder, url)
            found = Whereabouts(url, {}, runtime.unique())
        found = replace(found, url=url).told(options)
    elif found is None or not found.claimed:
        raise DataFolderError(f"{folder} names no store of its chunks: say which, with --tier2")
    else:
        options = found.options
    elsewhere = folder_of(found.url)
    if elsewhere is not None and not elsewhere.is_dir():
        raise StoreError(f"there is no folder {elsewhere}: see whether the URL is right, and whether it is mounted")
    claim = Claim(folder, found, options, runtime)
    try:
        found_there = await _containers(ChunkStore.of(claim))
        if not found_there:
            raise StoreError(f"there are no chunks in {claim.url}: see whether the URL is right")
        if containers is not None and max(found_there) >= containers:
            raise DataFolderError(f"{claim.url} has container {max(found_there)}: there were more than {containers}")
        await claim.take_over(is_named=claim.url == named)
        if containers is not None:
            await runtime.in_thread(begin, folder, containers)
    except RefusedError as error:
        raise StoreError(str(error)) from None
    finally:
        await claim.close()
    return claim.url


def _check_not_half_back(folder: Path, found: Whereabouts | None) -> None:
    if found is not None and not found.claimed and found.left:
        raise DataFolderError(f"a move back is under way: end it first, by `nadi tier2 move {folder} --back`")


def _check_has_none(folder: Path, url: str) -> None:
    """A move back would take for garbage what is in the folder and not in the store."""
    if has_chunks(folder):
        raise DataFolderError(
            f"the data folder {folder} has its chunks in {folder / TIER2}: move them by `nadi tier2 move {folder} --to "
            f"{url}`; if they are left of an earlier move, set {folder / TIER2} aside first"
        )


class _Claimed:
    """The claim while it is needed, made at the beginning."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    async def __aenter__(self) -> None:
        try:
            await self._claim.confirm()
        except BaseException as error:
            await self._claim.close()
            if isinstance(error, RefusedError):
                raise StoreError(str(error)) from None
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._claim.close()


async def _names(chunks: ChunkStore) -> dict[str, int]:
    """The sizes of all that belongs to the chunks, by name; none begins with a dot, as a folder's locks do."""
    found: dict[str, int] = {}
    async for page in chunks.pages(""):
        found |= {one.name: one.size_bytes for one in page}
    others = claims.NAME, f"{PROOF}/", records.FOLDER, TURN, "."
    return {name: size for name, size in found.items() if not name.startswith(others)}


async def _containers(chunks: ChunkStore) -> set[int]:
    """The numbers of those that the store has anything of."""
    tops = {name.removeprefix("snapshots/").partition("/")[0] for name in await _names(chunks)}
    return {int(match[1]) for top in tops if (match := re.fullmatch(r"container-(\d+)", top))}


async def _copy(source: ChunkStore, target: ChunkStore, told: Told) -> int:
    sizes, there = await _names(source), await _names(target)
    total, done = sum(sizes.values()), 0
    target.check_room(total - sum(size for name, size in there.items() if sizes.get(name) == size))

    async def copy(name: str) -> None:
        nonlocal done
        size = sizes[name]
        data = await source.read(name, 0, size)
        if len(data) != size:
            raise UnavailableError(f"{name} has {len(data):,} bytes now, and had {size:,}: see that no server runs")
        if there.get(name) == size and await target.read(name, 0, size) == data:
            await target.settle(name)
        else:
            await target.replace(name, [data])
            try:
                is_kept = await target.read(name, 0, size) == data
            except NotFoundError:
                is_kept = False
            if not is_kept:
                raise StoreError(f"{name} was stored in {target.url}, and isn't what was stored when it is read")
        done += size
        told("copied", done, total)

    await _some_at_once(sizes, copy)
    for number in await _containers(source):
        await (await target.records()).put(number, (await (await source.records()).read(number)).record)
    for name in there.keys() - sizes.keys():  # of an earlier try: a server has replaced it since
        await target.delete(name)
    return total


async def _delete(chunks: ChunkStore, told: Told) -> None:
    sizes, done = await _names(chunks), 0
    total = sum(sizes.values())

    async def delete(name: str) -> None:
        nonlocal done
        await chunks.delete(name)
        done += sizes[name]
        told("deleted where they were", done, total)

    for number in await _containers(chunks):
        await (await chunks.records()).delete(number)
    await _some_at_once(sizes, delete)


async def _some_at_once(names: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    async def one_after_another(waiting: Iterator[str]) -> None:
        for name in waiting:
            await work(name)

    waiting = iter(names)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one_after_another(waiting))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _forget(folder: Path) -> None:
    (folder / ELSEWHERE).unlink(missing_ok=True)
    sync_folder(folder)
