"""How often containers came to a server, and left it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Moves:
    """Since the server began. taken_over: from servers that were dead. received, handed_over: by agreement, from and to
    others. begun: containers that nobody ever had. fenced: claims, or containers, that another server was faster to
    claim."""

    taken_over: int = 0
    received: int = 0
    handed_over: int = 0
    begun: int = 0
    fenced: int = 0

    def took(self, *, by_hand_over: bool, owner: str) -> None:
        """A container is here. owner: whose it was, "" if nobody's."""
        if by_hand_over:
            self.received += 1
        elif owner:
            self.taken_over += 1
        else:
            self.begun += 1
