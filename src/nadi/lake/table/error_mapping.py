"""What foreign errors mean: try again, or change something; and which file it is that is damaged. And what of a
catalog's properties is secret: named by a variable of the environment, kept out of the store, of messages and of
whatever else is shown.

PyIceberg raises whatever bytes that aren't its own lead to, and names no file then. The frames of the error do: they
have the file in hand. A property is secret by its name, or has a password within its URI. Texts of others may quote an
address: so errors pass here.

>>> plain_secret("uri", "postgresql://lake:sesame@db/catalog")
'a password'
>>> plain_secret("uri", "postgresql://lake:${LAKE_PASSWORD}@db/catalog") is None
True
>>> without_secrets("can't reach postgresql://lake:sesame@db/catalog")
"can't reach postgresql://lake:***@db/catalog"
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from nadi.errors import NadiError, UnavailableError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(
    r"secret|password|passwd|pwd|passphrase|token|credential|(access|account|api|private).?key|connection-string"
    r"|^header\..*(authorization|cookie)",
    re.IGNORECASE,
)
_PORT = r"(?!\d{1,5}(?:[/?#\s]|$))"  # whose digits are no password
_OF_USER = re.compile(rf"(://[^/:@]*:){_PORT}(.+)(?=@$)", re.DOTALL)
_OF_USER_IN_WORD = re.compile(rf"(://[^/:@'\",]*:){_PORT}(.+)(?=@$)")
_WORD = re.compile(r"\S+")
_KEY = r"((?:^|[?&;])([^\s=&;#?]{1,60})=)"
_OF_QUERY = re.compile(_KEY + "([^&;]+)")
_OF_QUERY_IN_TEXT = re.compile(_KEY + r"([^\s&;#'\"]+)")
_SECRET_IN_QUERY = re.compile(rf"{_SECRET.pattern}|signature|^sig$|^pass$|^pw$|^odbc_connect$", re.IGNORECASE)
_SHOWN = "***"
_LEAST_CHARS = 4  # a shorter secret would blot out the words of a text


def plain_secret(name: str, value: str) -> str | None:
    """What a property has that is secret and not a variable's name, in words; None if nothing is."""
    if _SECRET.search(name) and not VARIABLE.search(value):
        return "a secret"
    return (
        "a password" if _changed(value, _hidden) != value else None
    )  # also beside a variable, as in a connection string


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without passwords in addresses, and without these secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST_CHARS:
            text = text.replace(secret, _SHOWN)
    text = _WORD.sub(lambda word: _of_user(word[0], _OF_USER_IN_WORD, _hidden), text)
    return _of_query(text, _OF_QUERY_IN_TEXT, _hidden)


def _hidden(password: str) -> str:
    return _SHOWN if VARIABLE.sub("", password) else password


def _changed(text: str, change: Callable[[str], str]) -> str:
    return _of_query(_of_user(text, _OF_USER, change), _OF_QUERY, change)


def _of_user(text: str, of_user: re.Pattern[str], change: Callable[[str], str]) -> str:
    """Up to the last "@", as what reads the address may see it; what is behind that isn't looked at, which would take
    time that grows with its square."""
    before, at, after = text.rpartition("@")
    return of_user.sub(lambda found: found[1] + change(found[2]), before + at) + after


def _of_query(text: str, of_query: re.Pattern[str], change: Callable[[str], str]) -> str:
    def changed(found: re.Match[str]) -> str:
        return found[1] + change(found[3]) if _SECRET_IN_QUERY.search(unquote(found[2])) else found[0]

    return of_query.sub(changed, text)


def resolved(properties: Mapping[str, str], value_of: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """The properties with the values of their variables, and those of them that are secret. A variable is its own text:
    where it is a password within an address, what an address can't have is quoted."""
    secrets: list[str] = []

    def quoted(variable: re.Match[str]) -> str:
        value = value_of(variable[1])
        secrets.extend((value, quote(value, safe="")))
        return quote(value, safe="")

    def noted(password: str) -> str:
        secrets.extend((password, unquote(password)))
        return password

    made = {}
    for name, value in properties.items():
        whole = _changed(value, lambda password: VARIABLE.sub(quoted, password))
        made[name] = VARIABLE.sub(lambda found: value_of(found[1]), whole)
        if _SECRET.search(name):
            secrets.append(made[name])
        _changed(made[name], noted)
    return made, secrets


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
