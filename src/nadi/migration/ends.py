"""The two ends of a migration, as its steps see them: `sources` and `targets` have those there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Manifest

Snapshots = Sequence[Manifest | None]  # by container; None: it never held anything


class Settled(NamedTuple):
    """The snapshots have everything, and the source stays as it is. epoch: no log of it ever had an owner of a later
    one."""

    snapshots: Snapshots
    epoch: int


class Source(Protocol):
    """Where the data is. Opened as a context; what isn't `left` when that ends is as it was before."""

    @property
    def id(self) -> str:
        """Of what is stored there, wherever that is."""

    @property
    def url(self) -> str: ...

    @property
    def chunks(self) -> ChunkStore: ...

    @property
    def containers(self) -> int: ...

    @property
    def is_served(self) -> bool:
        """Servers may be writing to it until it is settled."""

    async def refresh(self) -> None:
        """Have tier 2, and the snapshots, have what was written by now, if servers write on."""

    async def snapshots(self) -> Snapshots:
        """The newest ones, which servers may replace at any moment; raise UnavailableError if they can't be read."""

    async def left_by(self) -> str:
        """The id of the migration that has left it, "" if none has."""

    async def settle(self) -> Settled:
        """Keep everybody from writing, and have everything in the snapshots and the chunks that these name."""

    async def leave(self, to: str, migration: str) -> None:
        """Make sure, durably, that no server opens it from now on.

        ConflictError, FencedError: others may have written since it was settled, and it isn't left.
        """


class Target(Protocol):
    """Where the data goes. Opened as a context."""

    @property
    def url(self) -> str: ...

    @property
    def chunks(self) -> ChunkStore: ...

    @property
    def containers(self) -> int: ...

    @property
    def keeps_states(self) -> bool:
        """They are part of it, and are to be durable."""

    async def begin(self, source: Source) -> str:
        """Make sure that nobody opens it until the migration has ended, and return that one's id: a new one, or that of
        an earlier run.

        StoreError, DataFolderError: something is there already, or another migration is under way.
        """

    def states(self, scratch: Path) -> list[Path]:
        """New, empty folders for the states of its containers. Blocking."""

    async def put(self, number: int, state: Path, sequence: int, epoch: int) -> None:
        """Store the state of a container, which reflects everything up to that frame; its log begins after it, with
        owners of later epochs."""

    async def finish(self) -> None:
        """Let servers open it: one atomic step, after which all is done; nothing happens if it was done before."""
