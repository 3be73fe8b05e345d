"""What only time shows: which readers are silent, and when a checkpoint is due.

Each reader measures with its own monotonic clock how long a number in the state has not changed, so
no two clocks need to agree. Times come in as arguments.
"""

from __future__ import annotations

from nadi.client.readergroup.state import GroupState


class Watch:
    """One reader's view of the others."""

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._seen: dict[str, tuple[tuple[str, int], float]] = {}  # a reader's token and beat, and since when
        self._checkpoints: tuple[int, float] = (-1, 0.0)
        self._looked_at = 0.0

    def look(self, state: GroupState, now: float) -> None:
        """Note what the state says at `now` seconds."""
        patience = state.timing.dead_after_ms / 1000
        was_away = now - self._looked_at > patience / 2  # then it isn't known who reported meanwhile
        before = {} if was_away else self._seen
        self._looked_at = now
        self._seen = {}
        for name, held in state.readers.items():
            mark = (held.token, held.beat)
            known = before.get(name)
            self._seen[name] = known if known is not None and known[0] == mark else (mark, now)
        if self._checkpoints[0] != state.checkpoints_made:
            self._checkpoints = (state.checkpoints_made, now)

    def silent(self, state: GroupState) -> list[str]:
        """Readers that have not reported for too long."""
        patience = state.timing.dead_after_ms / 1000
        now = self._looked_at
        return [name for name, (_, since) in self._seen.items() if name != self._reader and now - since > patience]

    def due_checkpoint(self, state: GroupState) -> str | None:
        """The name of a checkpoint to make now, or None; the first reader by name makes them for all."""
        interval = state.timing.checkpoint_interval_ms / 1000
        if not interval or self._reader != min(state.readers) or any(one.pending for one in state.checkpoints):
            return None
        number, since = self._checkpoints
        return f"interval-{number + 1}" if self._looked_at - since >= interval else None
