"""Grants and the resources that they match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.access.permissions import (
    CLUSTER,
    Grant,
    Permission,
    Permissions,
    reader_group_resource,
    scope_resource,
    stream_resource,
    table_resource,
)
from nadi.errors import InvalidArgumentError


def test_resources_are_pravegas() -> None:
    assert CLUSTER == "prn::/"
    assert scope_resource("s") == "prn::/scope:s"
    assert stream_resource("s", "t") == "prn::/scope:s/stream:t"
    assert stream_resource("s", "_RGt.1-x") == "prn::/scope:s/stream:_RGt.1-x"
    assert reader_group_resource("s", "g") == "prn::/scope:s/reader-group:g"
    assert table_resource("s", "k") == "prn::/scope:s/key-value-table:k"


@given(st.text("ab/.*", max_size=8), st.text("ab/.", max_size=10))
def test_patterns_match_as_a_regular_expression_would(pattern: str, text: str) -> None:
    import re

    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
    assert Grant(pattern, Permission.READ).matches(text) is expected


def test_the_greatest_holds_and_none_beats_all() -> None:
    held = Permissions.parse("prn::/scope:a/*,READ; prn::/scope:a/stream:b,READ_UPDATE ;prn::/scope:a/stream:c,NONE")
    assert held.on("prn::/scope:a/stream:b") is Permission.READ_UPDATE
    assert held.on("prn::/scope:a/stream:c") is Permission.NONE
    assert held.on("prn::/scope:a/stream:d") is Permission.READ
    assert held.on("prn::/scope:b/stream:d") is Permission.NONE
    assert Permissions.parse(str(held)) == held


@pytest.mark.parametrize("text", ["prn::/", "prn::/,WRITE", "scope:a,READ", ",READ", "prn::/,read"])
def test_what_is_no_grant(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a valid grant"):
        Permissions.parse(text)


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_name_never_passes_for_another_resource(scope: str, stream: str) -> None:
    resource = stream_resource(scope, stream)
    assert resource.count("/") == 2
    assert resource.isascii()
    assert not set(resource) & set("*;,<>?~ ")
