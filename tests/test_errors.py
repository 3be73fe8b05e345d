"""Errors go from process to process: as those of a pool do."""

from __future__ import annotations

import pickle

import pytest

import nadi.errors
from nadi.errors import NadiError, RequestTimeoutError, StreamNotFoundError, TruncatedError
from nadi.search import IndexNotFoundError

KINDS = [one for one in vars(nadi.errors).values() if isinstance(one, type) and issubclass(one, NadiError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_the_same_in_another_process(kind: type[NadiError]) -> None:
    error = kind.__new__(kind)
    error.args = ("its words",)
    error.__dict__["value"] = 5
    made = pickle.loads(pickle.dumps(error))
    assert (type(made), made.args, made.__dict__, str(made)) == (kind, error.args, error.__dict__, "its words")


def test_errors_as_they_are_raised() -> None:
    for error in (
        StreamNotFoundError("home", "logs"),
        IndexNotFoundError("home", "logs"),
        RequestTimeoutError("too late"),
        TruncatedError("home/logs/0", 5, 9),
    ):
        made = pickle.loads(pickle.dumps(error))
        assert (type(made), str(made), made.__dict__) == (type(error), str(error), error.__dict__)
