"""Errors of an RPC come back as what they were, or as what they are a kind of."""

from __future__ import annotations

import inspect

import grpc
import pytest

from nadi import errors
from nadi.errors import NadiError
from nadi.wire.rpc.codes import CODES, code_of, kind_of

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, NadiError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_client_raises_a_kind_of_what_the_server_raised(kind: type[NadiError]) -> None:
    code = code_of(kind.__new__(kind))
    assert grpc.StatusCode[code]
    back = kind_of(code)
    assert code == "INTERNAL" if back is None else issubclass(kind, back)
    if kind in CODES:
        assert back is kind


def test_errors_are_found_where_they_say() -> None:
    for kind in KINDS:
        assert (kind.__module__, getattr(errors, kind.__name__)) == ("nadi.errors", kind)
