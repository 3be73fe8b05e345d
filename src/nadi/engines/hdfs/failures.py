"""What HDFS's errors mean, said once, without the Java stack that comes with them.

`hdfs-native` has a missing or existing file as Python's own errors, what the network does as OSError, and all else as a
RuntimeError whose text is a variant of its own, such as `RPCError("<Java class>", "<message, stack>")`.
"""

from __future__ import annotations

import re

from nadi.engines.failures import RefusedError
from nadi.errors import StorageFullError, UnavailableError

FOREIGN = (OSError, RuntimeError, NotImplementedError)  # and panics, see `is_foreign`
_VARIANT = re.compile(r'(\w+)(?:\((?:"([^"]*)", )?"?(.*))?', re.DOTALL)
_STACK = re.compile(r"(?:\\n|\n)(?:\\t|\t)at .*", re.DOTALL)
_LONGEST = 300
_KERBEROS = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_NO_FILE = "Path is not a file"


def is_foreign(error: BaseException) -> bool:
    """Whether the library raised it: a panic of its Rust is no Exception, and no caller's way to stop either."""
    return isinstance(error, FOREIGN) or type(error).__name__ == "PanicException"


def is_no_file(error: BaseException) -> bool:
    """Whether a folder has the name of what was to be a file."""
    return isinstance(error, IsADirectoryError) or (isinstance(error, FileNotFoundError) and _NO_FILE in str(error))


def is_away(error: BaseException) -> bool:
    """Whether no answer came: asking more would take as long again."""
    return isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, FileExistsError, IsADirectoryError))


def told(what: str, error: BaseException) -> UnavailableError:
    """The error to raise for one of the library's. what: as in "HDFS can't store container-0/x"."""
    kind, java, said = _parts(error)
    found = _kind(error, kind, java, said)
    message = _in_a_line(said)
    if found is not None:
        return found[0](f"HDFS can't {what}: {found[1]}{f' ({message})' if message else ''}")
    return UnavailableError(f"HDFS can't {what}: {message or type(error).__name__}; it is tried again")


def _parts(error: BaseException) -> tuple[str, str, str]:
    """The variant's name, the Java class without its package, and the message."""
    text = _STACK.sub("", str(error))
    variant = _VARIANT.fullmatch(text) if isinstance(error, RuntimeError) else None
    if variant is None:
        return "", "", text
    return variant[1], (variant[2] or "").rpartition(".")[2], (variant[3] or "").removesuffix('")')


def _kind(error: BaseException, kind: str, java: str, said: str) -> tuple[type[UnavailableError], str] | None:
    if isinstance(error, TimeoutError) and not said:
        return UnavailableError, "no answer in time; it is tried again"
    if "afeModeException" in java or "safe mode" in said:
        return UnavailableError, "its name node is in safe mode, and changes nothing until it leaves it; tried again"
    if "Quota" in java:
        return StorageFullError, "a quota of the folder is used up; raise it, or free space there"
    if "could only be written to 0 of" in said or "not sufficiently replicated yet" in said:
        return UnavailableError, "no data node takes it: they are away, or full; it is tried again"
    if java == "ParentNotDirectoryException" or "is not a directory" in said:  # to some calls it is a matter of access
        return RefusedError, "a part of its path is a file; correct the URL"
    if java in ("AccessControlException", "AuthorizationException"):
        return RefusedError, (
            "it forbids that; give the folder to the user that the server is there, or set HADOOP_USER_NAME"
        )
    if kind in _KERBEROS:
        return RefusedError, "it wants Kerberos, and there is no ticket here, or none that it takes: see kinit"
    if "erasure-coded" in said:
        return RefusedError, "the folder is erasure coded, and such files can't be synced: give it a replicated one"
    if "configured minimum value" in said:
        return RefusedError, "its name node takes larger blocks only; set the option dfs.blocksize to what it takes"
    if java == "StandbyException":
        return UnavailableError, "none of its name nodes is active; it is tried again"
    if java == "InvalidPathException":
        return RefusedError, "it takes no such path; correct the URL"
    if is_away(error):
        return UnavailableError, "it can't be reached, or the connection broke; it is tried again"
    return None


def _in_a_line(text: str) -> str:
    text = " ".join(text.replace("\\n", " ").replace('\\"', '"').split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
