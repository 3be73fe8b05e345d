"""How many bytes each file beside the log has that are nowhere else, and which files are of no more use."""

from __future__ import annotations


class HeldRuns:
    """By the files' numbers (`tier1.runs`). unused: those without any such bytes, with the frame that said so: once no
    start replays that frame any more, they can be deleted."""

    def __init__(self) -> None:
        self.bytes_of: dict[int, int] = {}
        self.size_bytes = 0
        self.unused: dict[int, int] = {}

    def hold(self, run: int, length: int) -> None:
        """That many more bytes are there."""
        self.bytes_of[run] = self.bytes_of.get(run, 0) + length
        self.size_bytes += length
        self.unused.pop(run, None)

    def release(self, run: int, length: int, sequence: int) -> None:
        """That many fewer are, says a frame."""
        self.size_bytes -= length
        self.bytes_of[run] -= length
        if not self.bytes_of[run]:
            del self.bytes_of[run]
            self.unused[run] = sequence

    def take_unused(self, before_sequence: int) -> list[int]:
        """Those that became of no use before that frame; they are forgotten here."""
        taken = [run for run, sequence in self.unused.items() if sequence < before_sequence]
        for run in taken:
            del self.unused[run]
        return taken
