"""Errors of an RPC that its reply has no status for, as the names of gRPC codes, and back.

Both official clients agree on these: NOT_FOUND and INVALID_ARGUMENT are not retried, UNAVAILABLE and
RESOURCE_EXHAUSTED are.

>>> code_of(KeyError("ours")), kind_of("ABORTED").__name__
('INTERNAL', 'ConflictError')
"""

from __future__ import annotations

from nadi.errors import (
    ConflictError,
    EpochGoneError,
    InvalidArgumentError,
    NadiError,
    NotAuthenticatedError,
    NotFoundError,
    PermissionDeniedError,
    RequestTimeoutError,
    StorageFullError,
    UnavailableError,
)

CODES: dict[type[NadiError], str] = {  # what an error is first of all stands first
    NotFoundError: "NOT_FOUND",
    InvalidArgumentError: "INVALID_ARGUMENT",
    RequestTimeoutError: "DEADLINE_EXCEEDED",
    StorageFullError: "RESOURCE_EXHAUSTED",
    UnavailableError: "UNAVAILABLE",
    ConflictError: "FAILED_PRECONDITION",
    NotAuthenticatedError: "UNAUTHENTICATED",
    PermissionDeniedError: "PERMISSION_DENIED",
    EpochGoneError: "OUT_OF_RANGE",
}
_ALSO = {"ABORTED": ConflictError}  # from other controllers
_KINDS: dict[str, type[NadiError]] = {code: kind for kind, code in CODES.items()} | _ALSO


def code_of(error: Exception) -> str:
    """The code that a server answers with."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), "INTERNAL")


def kind_of(code: str) -> type[NadiError] | None:
    """The error that a client raises; None for a code that stands for none of them."""
    return _KINDS.get(code)
