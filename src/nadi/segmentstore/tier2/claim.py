"""A data folder's claim to the store where its chunks are: no two folders, no cluster, and no copy of the folder ever
write there together.

The store has one small value, `tier2.json`, set by compare-and-set: the folder's id, and a number of chance that each
opening replaces. The folder remembers both (`whereabouts`). So another folder is told apart by the id, and a copy of
the same folder by the opening: the one that opens the store after the other did is refused, and the one that has it
open finds out before it deletes anything, and writes nothing after that.

A store that doesn't answer at a start is no obstacle for a folder that had it before: the log is here. It is claimed
before the first write to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from nadi.engines import outcomes
from nadi.engines.engine import Entry, LogEngine, Registry
from nadi.engines.failures import RefusedError
from nadi.engines.identity import TURN, turn_has_ended
from nadi.engines.opening import open_of_chunks
from nadi.engines.outcomes import patiently
from nadi.engines.proof import PROOF, prove
from nadi.engines.urls import folder_of
from nadi.errors import NadiError, StoreError, UnavailableError
from nadi.runtime import Runtime
from nadi.segmentstore.tier2.whereabouts import Whereabouts

log = logging.getLogger(__name__)
NAME = "tier2.json"
FORMAT = 1
START_S = 10.0  # that a start waits for a store that the folder had before
_CLUSTER = "cluster.json"  # as `engines.identity` calls it


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the store says of who has it."""

    folder: str
    opening: str
    format: int = FORMAT


class Claim:
    """Of a data folder, to the store of `where`. options: as that is reached. on_lost: called once it turns out that
    the store isn't this folder's, or not any more; nothing is written there from then on. is_settled: if False, the
    chunks are being moved, and whether the folder says that they are there is for whoever moves them.
    """

    def __init__(
        self,
        folder: Path,
        where: Whereabouts,
        options: dict[str, str],
        runtime: Runtime,
        *,
        is_settled: bool = True,
    ) -> None:
        self.options = options
        self.on_lost: Callable[[], None] = lambda: None
        self.lost: StoreError | None = None
        self.is_confirmed = False
        self._is_away = False  # it didn't answer at the start, and hasn't since
        self.folder, self._where, self._runtime, self._is_settled = folder, where, runtime, is_settled
        self._engines: tuple[LogEngine, Registry] | None = None
        self._confirming: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._where.url

    @property
    def where(self) -> Whereabouts:
        """What the folder says now."""
        return self._where

    def is_at(self, root: Path) -> bool:
        """Whether that folder, which may be a mounted one, is the store now; blocking, but not for long."""
        return (root / NAME).exists()

    # --- claiming ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Claim the store, or leave that for later if it was this folder's before, and doesn't answer.

        Raises:
            StoreError: it is another's.
            StoreError: it can't be used, or refuses.
            UnavailableError: it doesn't answer, and was never claimed.
        """
        try:
            if not self._where.claimed:
                return await patiently(f"be claimed at {self.url}", self.confirm, self._runtime)
            async with asyncio.timeout(START_S):
                await self.confirm()
        except RefusedError as error:
            raise StoreError(str(error)) from None
        except (TimeoutError, UnavailableError) as error:
            if not self._where.claimed:
                raise
            self._is_away = True
            said = str(error) or f"nothing in {START_S:.0f} s"
            log.warning("tier 2 in %s doesn't answer, and the log goes on without it: %s", self.url, said)

    async def confirm(self) -> None:
        """Make sure that the store was claimed by this process.

        Raises:
            StoreError: it is another's; `on_lost` was called.
            StoreError: it can't be used; likewise.
            UnavailableError: that isn't known.
        """
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        if not self.is_confirmed:
            await asyncio.shield(self._try())

    async def confirm_at_once(self) -> None:
        """`confirm`, but wait no more for a store that didn't answer at the start, for each container asks.

        Raises: as `confirm`.
        """
        if self._is_away and not self.is_confirmed:
            self._try()
            raise UnavailableError(f"tier 2 in {self.url} hasn't answered since the start; it is tried again")
        await self.confirm()

    def _try(self) -> asyncio.Task[None]:
        if self._confirming is None or self._confirming.done():
            self._confirming = asyncio.create_task(self._confirm(), name="tier2-claim")
            self._confirming.add_done_callback(_seen)
        return self._confirming

    async def check(self) -> None:
        """Make sure that no other has opened the store since.

        Raises: as `confirm`.
        """
        await self.confirm()
        _, registry = await self._opened()
        entry = await registry.get(NAME)
        if entry is None or _held(entry).opening != self._where.opening:
            raise self._lose(self._another(entry))

    async def close(self) -> None:
        """Let go of what reached the store."""
        if self._confirming is not None:
            self._confirming.cancel()
            await asyncio.gather(self._confirming, return_exceptions=True)
        if self._engines is not None:
            await self._engines[0].close()
            self._engines = None

    async def give_up(self) -> None:
        """Remove what the store says of this folder, once it has no chunks there any more."""
        await self.check()
        _, registry = await self._opened()
        await registry.delete(NAME)

    async def _opened(self) -> tuple[LogEngine, Registry]:
        if self._engines is None:
            folder = folder_of(self.url, **self.options)
            if folder is not None and self._where.claimed and not folder.is_dir():
                raise UnavailableError(f"there is no {folder} now: see whether it is mounted")
            self._engines = await open_of_chunks(self.url, self._runtime, **self.options)
        return self._engines

    async def _confirm(self) -> None:
        engine, registry = await self._opened()
        entry = await registry.get(NAME)
        try:
            if entry is None:
                await self._before_first(engine, registry)
            else:
                self._check_is_ours(entry)
        except StoreError as error:
            raise self._lose(error) from None
        await self._set(registry, Held(self._where.folder, self._where.next or self._runtime.unique()), entry)

    async def _set(self, registry: Registry, new: Held, entry: Entry | None) -> None:
        """Have the store say that it is this folder's, which knows before that it may."""
        await self.say(msgspec.structs.replace(self._where, next=new.opening))
        await self._replace(registry, new, entry)

    async def _replace(self, registry: Registry, new: Held, entry: Entry | None) -> None:
        value = msgspec.json.encode(new)
        if await outcomes.was_set(registry, NAME, value, entry.version if entry is not None else None) is None:
            raise UnavailableError(f"somebody else is just opening {self.url}")
        is_there = self._where.claimed or self._is_settled
        said = msgspec.structs.replace(self._where, folder=new.folder, opening=new.opening, next="", claimed=is_there)
        await self.say(said)
        self.is_confirmed = True

    async def _before_first(self, engine: LogEngine, registry: Registry) -> None:
        """Of a store that nobody has: whether it may be had, and keeps what this stands on."""
        if self._where.claimed:
            raise StoreError(gone(self.folder, self.url))
        turn = await registry.get(TURN)
        past = TURN if turn is not None and turn_has_ended(turn.value) else ""  # a migration that came to nothing
        async for page in engine.listed(""):
            found = list(islice((name for name in page if not name.startswith(f"{PROOF}/") and name != past), 3))
            if _CLUSTER in page:
                raise StoreError(f"{self.url} is the store of a cluster: give tier 2 a prefix of its own")
            if found and await registry.get(NAME) is None:
                raise StoreError(
                    f"{self.url} holds {', '.join(found)} and no {NAME}: give tier 2 a URL of its own, such as "
                    "s3://bucket/prefix with a prefix that nothing has"
                )
        await prove(engine, registry, self._runtime)

    def _check_is_ours(self, entry: Entry) -> None:
        held = _held(entry)
        if held.folder != self._where.folder or held.opening not in (self._where.opening, self._where.next):
            raise self._another(entry)

    def _another(self, entry: Entry | None) -> StoreError:
        if entry is None:
            return StoreError(f"{NAME} was removed from {self.url} while this server ran: restore it")
        if _held(entry).folder == self._where.folder:
            what = (
                f"{self.url} was opened by a copy of the data folder {self.folder} since this one had it: use that one"
            )
            if not self._where.claimed:
                return StoreError(f"{what}; or give this one, whose chunks aren't there, a prefix of its own")
            return StoreError(f"{what}; or, if it is gone, `nadi tier2 claim {self.folder}`")
        return StoreError(f"{self.url} has the chunks of another data folder: give this one a prefix of its own")

    def _lose(self, error: StoreError) -> StoreError:
        if self.lost is None:
            self.lost = error
            self.on_lost()
        return error

    async def say(self, where: Whereabouts) -> None:
        """Have the folder say so, durably."""
        await self._runtime.in_thread(where.write, self.folder)
        self._where = where

    async def take_over(self, *, is_named: bool) -> None:
        """Claim the store whichever copy of the folder had it, for an operator who knows that nobody else needs it.

        is_named: whether the folder names this store. If not, it says what it did until that is done; so this may be
        killed, and done again.

        Raises:
            StoreError: it is a cluster's, or another folder's.
            StoreError: nothing is there, or it can't be used.
            UnavailableError: it isn't known whether it was claimed; it may be done again.
        """
        _, registry = await self._opened()
        if await registry.get(_CLUSTER) is not None:
            raise StoreError(f"{self.url} is the store of a cluster: it can't be claimed")
        entry = await registry.get(NAME)
        folder = _held(entry).folder if entry is not None else self._where.folder
        if self._where.claimed and folder != self._where.folder:
            raise StoreError(f"{self.url} has the chunks of another data folder: see whether the URL is right")
        claim = self._set if is_named else self._replace
        await claim(registry, Held(folder, self._runtime.unique()), entry)


def gone(folder: Path, url: str) -> str:
    """What to say of a store that the folder had, and that has nothing of it."""
    return (
        f"{url} doesn't have {NAME} any more, by which the folder {folder} knows its chunks: it was emptied, isn't "
        f"mounted, or is another one. Restore it; or, if the chunks are all there, `nadi tier2 claim {folder}`"
    )


def _held(entry: Entry) -> Held:
    try:
        held = msgspec.json.decode(entry.value, type=Held)
    except msgspec.MsgspecError:
        raise StoreError(
            f"{NAME} in the store isn't one that this nadi wrote: restore it; or, if the chunks are this folder's, "
            "remove it, and then `nadi tier2 claim`"
        ) from None
    if held.format != FORMAT:
        raise StoreError(f"{NAME} in the store has format {held.format}, and this nadi reads format {FORMAT}")
    return held


def _seen(task: asyncio.Task[None]) -> None:
    """Whoever waits for it has its error; nobody may."""
    if not task.cancelled() and isinstance(task.exception(), NadiError):
        log.debug("tier 2 isn't claimed yet: %s", task.exception())
