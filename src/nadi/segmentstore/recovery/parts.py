"""The seam between a container and where its log and state are kept: in a folder (`recovery.localparts`), or elsewhere.

A container never opens a file itself. It opens its parts, writes, and reopens them after a failure; what that takes
(checking the state, rebuilding it, a seal, room kept aside) is up to the parts.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.tier1.log import DurableLog
from nadi.segmentstore.tier1.runs import RunFiles


class Opened(NamedTuple):
    """A container's parts, open; `state` is what log and stored state say together. runs: where large runs of bytes go
    beside the log; None: they go there too."""

    metadata: Metadata
    log: DurableLog
    state: StateMachine
    runs: RunFiles | None = None

    async def close(self) -> None:
        """Close the parts; nothing is written."""
        if self.runs is not None:
            await self.runs.close()
        await self.log.close()
        self.metadata.close()


class ContainerParts(Protocol):
    """The parts of one container. Everything is called from one event loop."""

    number: int
    snapshots: Snapshotter
    rebuilt: str  # why the state was rebuilt when it was opened, if it was
    looks_for_chunks: bool  # whether the chunks that the state names are looked up when it is opened

    def is_owned(self) -> bool:
        """Whether they are still this server's; if not, they must not be opened again."""

    def may_answer(self) -> bool:
        """Whether what is known here may be told: nobody else can have the container by now."""

    async def open(self) -> Opened:
        """Become the only owner, and recover.

        Raises:
            DamagedStateError: the state is damaged or missing, and can't be rebuilt without loss.
            CorruptLogError: the log doesn't match it.
            StorageFullError: there is no room, not even with what is kept aside.
            FencedError: they are another server's; they must not be opened again.
            UnavailableError, OSError, lmdb.Error: a disk or a store fails; it may be repaired.
        """

    def distrust_state(self) -> None:
        """The state was found damaged: the next `open` checks all of it."""

    @property
    def may_be_sealed(self) -> bool:
        """Whether a start could still assume that nothing was written since the last stop: see `unseal`."""

    async def unseal(self) -> None:
        """Remove the seal, before the first frame, and before the state is written."""

    async def seal(self, log_epoch: int, *, has_all: bool) -> None:
        """Seal the closed state. has_all: it has all that the log says, whose last owner was that of this epoch."""

    async def inspect_state(self) -> tuple[str, int]:
        """Walk the stored state, while no commit runs; return what is wrong with it, or "", and its size in bytes.

        Raises:
            OSError: it can't be read.
        """

    def is_no_room(self, error: Exception) -> bool:
        """Whether the error came from lack of room."""

    def take_room(self) -> None:
        """Reserve the space kept aside, if there is room and it isn't reserved yet."""

    def release_room(self) -> bool:
        """Release the reserved space; return False if there is none."""
