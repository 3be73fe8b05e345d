"""Maps foreign errors to UnavailableError (retry) or LakeStoppedError (change something), and names the damaged file.
Keeps secrets in a catalog's properties out of the store, messages and other output: they must be environment variables.

PyIceberg raises arbitrary errors for damaged bytes, without the file's name; the name is found in the error's frames. A
property is secret by its name, or if its URI contains a password. Messages of libraries may quote addresses, so all
their errors are filtered here.

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
_PORT = r"(?!\d{1,5}(?:[/?#\s]|$))"  # the digits of a port are not a password
_OF_USER = re.compile(rf"(://[^/:@]*:){_PORT}(.+)(?=@$)", re.DOTALL)
_OF_USER_IN_WORD = re.compile(rf"(://[^/:@'\",]*:){_PORT}(.+)(?=@$)")
_WORD = re.compile(r"\S+")
_KEY = r"((?:^|[?&;])([^\s=&;#?]{1,60})=)"
_OF_QUERY = re.compile(_KEY + "([^&;]+)")
_OF_QUERY_IN_TEXT = re.compile(_KEY + r"([^\s&;#'\"]+)")
_SECRET_IN_QUERY = re.compile(rf"{_SECRET.pattern}|signature|^sig$|^pass$|^pw$|^odbc_connect$", re.IGNORECASE)
_SHOWN = "***"
_LEAST_CHARS = 4  # shorter secrets would mask ordinary words


def plain_secret(name: str, value: str) -> str | None:
    """Return what kind of secret a property has in plain text; None if it hasn't any."""
    if _SECRET.search(name) and not VARIABLE.search(value):
        return "a secret"
    # a password may also be next to a variable, as in a connection string
    return "a password" if _changed(value, _hidden) != value else None


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without passwords in addresses and without these secrets."""
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
    """Replace up to the last "@", the longest user part that a reader of the address may see; searching further would
    take quadratic time."""
    before, at, after = text.rpartition("@")
    return of_user.sub(lambda match: match[1] + change(match[2]), before + at) + after


def _of_query(text: str, of_query: re.Pattern[str], change: Callable[[str], str]) -> str:
    def changed(match: re.Match[str]) -> str:
        return match[1] + change(match[3]) if _SECRET_IN_QUERY.search(unquote(match[2])) else match[0]

    return of_query.sub(changed, text)


def resolved(properties: Mapping[str, str], value_of: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """Return the properties with variables replaced, and the secrets among them. A variable that is a password in an
    address is percent-encoded."""
    secrets: list[str] = []

    def quoted(variable: re.Match[str]) -> str:
        value = value_of(variable[1])
        secrets.extend((value, quote(value, safe="")))
        return quote(value, safe="")

    def noted(password: str) -> str:
        secrets.extend((password, unquote(password)))
        return password

    values = {}
    for name, value in properties.items():
        quoted_value = _changed(value, lambda password: VARIABLE.sub(quoted, password))
        values[name] = VARIABLE.sub(lambda match: value_of(match[1]), quoted_value)
        if _SECRET.search(name):
            secrets.append(values[name])
        _changed(values[name], noted)
    return values, secrets


CATALOG, STORAGE = "the catalog", "the table's storage"
_PERMANENT = {"ArgumentError", "NoSuchModuleError", "DatabaseError", "ProgrammingError", "DataError"}  # SQLAlchemy's
_READ_BYTES = 8 << 20
_TEXT_CHARS = 5_000  # maximum length of an error that is searched for secrets


class LakeStoppedError(NadiError):
    """The lake can't continue until something is changed, as the message says. No data is lost: after a restart it
    continues from its cut."""


@contextmanager
def mapped_errors(what: str, secrets: Collection[str] = ()) -> Iterator[None]:
    """Map foreign errors: UnavailableError if a retry may help, LakeStoppedError if not. secrets: to be removed from
    messages, like passwords in addresses."""
    try:
        yield
    except Exception as error:
        mapped = _ours(what, error, secrets)
        if mapped is None:
            raise
        raise mapped from cause(error, secrets)


def cause(error: Exception, secrets: Collection[str] = ()) -> Exception | None:
    """Return the error as a cause, which tracebacks show; None if its text, or an earlier error's, has a secret
    or is too long to check."""
    current: BaseException | None = error
    while current is not None:
        text = str(current)
        if len(text) > _TEXT_CHARS or without_secrets(text, secrets) != text:
            return None
        current = current.__cause__ or current.__context__
    return error


def _ours(what: str, error: Exception, secrets: Collection[str]) -> NadiError | None:
    """Return the mapped error; None for an unknown error or one of nadi's."""
    import pyarrow as pa
    from pyiceberg import exceptions

    retryable: tuple[type[BaseException], ...] = (
        OSError,
        exceptions.ServiceUnavailableError,
        exceptions.ServerError,
        exceptions.CommitStateUnknownException,
        exceptions.TooManyRequestsError,
        exceptions.AuthorizationExpiredError,
    )
    rejected = (exceptions.RESTError, exceptions.NoSuchNamespaceError)
    library = type(error).__module__.partition(".")[0]
    if library == "nadi":
        return None
    words = _words(error, secrets)
    if library == "sqlalchemy" and type(error).__name__ in _PERMANENT:
        return LakeStoppedError(f"can't use {what}: {words}. Correct its properties (--catalog)")
    if isinstance(error, retryable) or library in ("sqlalchemy", "requests", "urllib3"):
        return UnavailableError(f"{what} is unavailable: {words}")
    if isinstance(error, rejected):
        return LakeStoppedError(f"{what} rejected the request: {words}")
    path = _file_being_read(error)
    if path is not None:
        return damaged(path, error)
    if isinstance(error, pa.ArrowException | OverflowError):
        return LakeStoppedError(
            f"a value can't be stored in the table or read from it: {words}. Events before the table's cut are in it"
        )
    if isinstance(error, exceptions.ValidationError):
        return LakeStoppedError(f"{what} rejected the request: {words}")
    return None


def damaged(path: str, error: BaseException) -> LakeStoppedError:
    return LakeStoppedError(
        f"the table's file {path} is damaged ({_words(error)}): restore it from a copy, or roll the table back to a "
        "snapshot without it"
    )


def _file_being_read(error: BaseException) -> str | None:
    """Return the file that was being read, from the innermost frame that has one."""
    from pyiceberg.io import InputFile

    location = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, InputFile):
                location = value.location
    return location


def file_error(io: FileIO, task: FileScanTask) -> NadiError | None:
    """Return why a data file or its delete files can't be read, if a file is the cause: missing, or complete but not
    Parquet."""
    for path in (task.file.file_path, *(delete_file.file_path for delete_file in task.delete_files)):
        problem = _file_error(io, path)
        if problem is not None:
            return problem
    return None


def _file_error(io: FileIO, path: str) -> NadiError | None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with io.new_input(path).open() as stream:
            while stream.read(_READ_BYTES):
                pass
    except FileNotFoundError:
        return UnavailableError(
            f"the table's file {path} is missing. If snapshots were expired meanwhile, read the table again; otherwise "
            "restore the file from a copy"
        )
    except OSError:
        return None  # the storage is the cause
    try:
        with io.new_input(path).open() as stream:
            parquet.ParquetFile(stream).read()
    except (OSError, pa.ArrowException, ValueError) as error:
        return damaged(path, error)
    return None


def _words(error: BaseException, secrets: Collection[str] = ()) -> str:
    """Return the error's first line, without secrets: later lines may contain signed requests."""
    lines = without_secrets(str(error)[:_TEXT_CHARS], secrets).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
