"""What was found of one part of a data folder, and what that means for a server, or for a repair."""

from __future__ import annotations

from dataclasses import dataclass, field

from nadi.errors import CorruptLogError, DamagedStateError


@dataclass(slots=True)
class Report:
    """What was found, line by line, for each part.

    sound: what there is. healed: damage that a start, or `nadi repair`, repairs without loss. renewed: damage that a
    server repairs while it runs. lost: what can't be read, or would be given up.
    """

    name: str
    sound: list[str] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    cut: CorruptLogError | None = None  # the log can only be used up to there
    leaves_out: bool = False  # what can't be read of the log, and keeps what follows
    unnamed: int = 0  # chunks that belong to what is given up
    given_up_from: int = 0  # the first frame of an end of the log that an earlier repair gave up
    state_is_lost: DamagedStateError | None = None
    can_be_had_back: bool = False  # whatever of it is intact
    is_refused: bool = False  # no server starts with it, and a repair changes nothing about that
    segments: int = 0
    names: list[str] = field(default_factory=list)  # of the segments
    containers: int = 0  # so many there are, by their segments' names alone

    def refuse(self, what: str) -> None:
        """No server starts with it, because of `what`, and a repair changes nothing about that."""
        self.lost.append(what)
        self.is_refused = True

    @property
    def can_be_served(self) -> bool:
        return not (self.is_refused or self.cut or self.leaves_out or self.state_is_lost)

    @property
    def gives_up(self) -> bool:
        """Whether a repair gives up what is `lost`, so that it can't be read any more, and isn't reported later."""
        return self.leaves_out or self.can_be_had_back or self.cut is not None

    @property
    def is_sound(self) -> bool:
        return not (self.healed or self.renewed or self.lost)
