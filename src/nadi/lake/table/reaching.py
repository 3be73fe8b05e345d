"""What foreign errors mean: try again, or change something; and which file it is that is damaged.

PyIceberg raises whatever bytes that aren't its own lead to, and names no file then. The frames of the error do: they
have the file in hand.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nadi.errors import NadiError, UnavailableError
from nadi.lake.table.secrets import without_secrets

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask

CATALOG, STORAGE = "the catalog", "the table's storage"
_PERMANENT = {"ArgumentError", "NoSuchModuleError", "DatabaseError", "ProgrammingError", "DataError"}  # of SQLAlchemy's
_READ_BYTES = 8 << 20
_TEXT_CHARS = 5_000  # of an error, that are looked through


class LakeStoppedError(NadiError):
    """The lake can't go on at its cut by itself: the message says what to change. Nothing is lost: started again, it
    continues from there."""


@contextmanager
def reaching(what: str, secrets: Collection[str] = ()) -> Iterator[None]:
    """Foreign errors as ours: UnavailableError where trying again may help, LakeStoppedError where it can't. secrets:
    what no message may have, besides passwords in addresses."""
    try:
        yield
    except Exception as error:
        found = _ours(what, error, secrets)
        if found is None:
            raise
        raise found from cause(error, secrets)


def cause(error: Exception, secrets: Collection[str] = ()) -> Exception | None:
    """The error as another's cause, which tracebacks show; None if the text of it, or of one behind it, has a
    secret, or is too long to be looked through."""
    behind: BaseException | None = error
    while behind is not None:
        text = str(behind)
        if len(text) > _TEXT_CHARS or without_secrets(text, secrets) != text:
            return None
        behind = behind.__cause__ or behind.__context__
    return error


def _ours(what: str, error: Exception, secrets: Collection[str]) -> NadiError | None:
    """None for an error that isn't foreign, or unknown."""
    import pyarrow as pa
    from pyiceberg import exceptions

    again: tuple[type[BaseException], ...] = (
        OSError,
        exceptions.ServiceUnavailableError,
        exceptions.ServerError,
        exceptions.CommitStateUnknownException,
        exceptions.TooManyRequestsError,
        exceptions.AuthorizationExpiredError,
    )
    refused = (exceptions.RESTError, exceptions.NoSuchNamespaceError)
    library = type(error).__module__.partition(".")[0]
    if library == "nadi":
        return None
    words = _words(error, secrets)
    if library == "sqlalchemy" and type(error).__name__ in _PERMANENT:
        return LakeStoppedError(f"{what} can't be used: {words}. Correct its properties (--catalog)")
    if isinstance(error, again) or library in ("sqlalchemy", "requests", "urllib3"):
        return UnavailableError(f"{what} can't be reached, or can't do it now: {words}")
    if isinstance(error, refused):
        return LakeStoppedError(f"{what} refuses it: {words}")
    path = _in_hand(error)
    if path is not None:
        return damaged(path, error)
    if isinstance(error, pa.ArrowException | OverflowError):
        return LakeStoppedError(
            f"a value can't be kept in the table, or read from it: {words}. What lies before the table's cut is in it"
        )
    if isinstance(error, exceptions.ValidationError):
        return LakeStoppedError(f"{what} refuses it: {words}")
    return None


def damaged(path: str, error: BaseException) -> LakeStoppedError:
    return LakeStoppedError(
        f"{path}, a file of the table, is damaged ({_words(error)}): bring it back from a copy, or roll the table back "
        "to a state that doesn't name it"
    )


def _in_hand(error: BaseException) -> str | None:
    """The file that was being read: the one of the innermost frame that has one."""
    from pyiceberg.io import InputFile

    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, InputFile):
                found = value.location
    return found


def wrong_file(io: FileIO, task: FileScanTask) -> NadiError | None:
    """Why rows of a data file can't be read, if it is the file, or one that says what was deleted from it: each can be
    fetched as a whole, and what is there isn't Parquet, or it is gone."""
    for path in (task.file.file_path, *(one.file_path for one in task.delete_files)):
        found = _wrong(io, path)
        if found is not None:
            return found
    return None


def _wrong(io: FileIO, path: str) -> NadiError | None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with io.new_input(path).open() as stream:
            while stream.read(_READ_BYTES):
                pass
    except FileNotFoundError:
        return UnavailableError(
            f"{path}, a file of the table, is gone. If snapshots were expired since the table was looked at, do so "
            "again; else bring it back from a copy"
        )
    except OSError:
        return None  # it is the storage
    try:
        with io.new_input(path).open() as stream:
            parquet.ParquetFile(stream).read()
    except (OSError, pa.ArrowException, ValueError) as error:
        return damaged(path, error)
    return None


def _words(error: BaseException, secrets: Collection[str] = ()) -> str:
    """The error's first line, without secrets: what follows in some are requests, with what signed them."""
    lines = without_secrets(str(error)[:_TEXT_CHARS], secrets).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
