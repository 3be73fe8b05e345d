"""What keeps a server from using its data folder as it is."""

from __future__ import annotations

from nadi.errors.base import NadiError


class DataFolderError(NadiError):
    """The data folder can't be used as it is."""


class DataFolderLockedError(DataFolderError):
    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(f"{folder} is in use by another server ({owner}): stop it, or give another --data")
        self.folder = folder


class DataFolderTakenError(DataFolderError):
    def __init__(self, folder: str) -> None:
        super().__init__(
            f"another server has opened the data folder {folder}, whose file `lock` was removed while this one was "
            "running: it stops; what it acknowledged is kept. Never remove that file: its existence means nothing"
        )
        self.folder = folder


class DataFolderVersionError(DataFolderError):
    def __init__(self, folder: str, found: object, expected: int) -> None:
        super().__init__(
            f"the data folder {folder} has format {found}, but this nadi reads format {expected}: "
            "use the nadi version that wrote it, or another folder with --data"
        )
        self.folder, self.found, self.expected = folder, found, expected


class CorruptLogError(DataFolderError):
    """Acknowledged data in the durable log is damaged, at `offset` of `file`; nothing was changed on disk."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(
            f"the durable log is damaged at byte {offset:,} of {file}: {what}. Nothing was changed. "
            "Restore that file from a copy and start again; or see with `nadi check` what is lost and what can be "
            "recovered, then let `nadi repair` leave out what can't be read"
        )
        self.file, self.offset, self.what = file, offset, what


class DamagedStateError(DataFolderError):
    """What a container knows of its segments is damaged, and its snapshots and log don't have all; nothing changed."""

    def __init__(self, folder: str, what: str, why_not: str = "") -> None:
        super().__init__(
            f"the state in {folder} can't be used: {what}"
            + (f"; and it can't be rebuilt without loss: {why_not}" if why_not else "")
            + ". Nothing was changed. See with `nadi check` what is damaged and what can be recovered, "
            "then restore it from a copy, or let `nadi repair` recover what it can"
        )
        self.folder, self.what, self.why_not = folder, what, why_not
