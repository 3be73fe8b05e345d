"""Grants and the resources that they match; delegation tokens, their form and their checks."""

from __future__ import annotations

import base64
import json
import math
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.access.names import Act
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
from nadi.access.tokens import KEY_FILE, TokenKey
from nadi.errors import DataFolderError, InvalidArgumentError, PermissionDeniedError, TokenExpiredError

SECRET = bytes(range(64))
NOW = 1_700_000_000
READ, UPDATE = Permission.READ, Permission.READ_UPDATE


class Time:
    now = float(NOW)

    def __call__(self) -> float:
        return self.now


def test_token_has_pravegas_form() -> None:
    token = TokenKey(SECRET, 600, Time()).issue("s", "t", UPDATE)
    assert jwt.get_unverified_header(token)["alg"] == "HS512"
    assert jwt.decode(token, options={"verify_signature": False}) == {
        "sub": "segmentstoreresource",
        "aud": "segmentstore",
        "iat": NOW,
        "exp": NOW + 600,
        "prn::/scope:s/stream:t": "READ_UPDATE",
    }


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 1 << 33), st.integers(1, 1 << 30))
def test_rust_client_can_decode_tokens(scope: str, stream: str, now: int, lifetime: int) -> None:
    token = TokenKey(SECRET, lifetime, lambda: now).issue(scope, stream, READ)
    payload = token.split(".")[1]
    text = base64.b64decode(payload + "=" * (-len(payload) % 4), validate=True).decode()
    assert f'"exp":{now + lifetime}' in text
    assert json.loads(text)["iat"] == now


def test_token_permits_only_its_streams_segments() -> None:
    key = TokenKey(SECRET, now_s=Time(), monotonic_s=lambda: 50.0)
    token = key.check(key.issue("s", "t", READ))
    assert token.ends_at == 650
    assert token.permits("s/t/0.#epoch.0", Act.READ)
    assert not token.permits("s/t/0.#epoch.0#transient.ab", Act.READ)
    assert not token.permits("s/t/0.#epoch.0", Act.WRITE)
    for other in ("s/u/0.#epoch.0", "r/t/0.#epoch.0", "s/t", "s/tt/0", "s", "", "s/_RGt/0.#epoch.0", "s/t_kvtable/0"):
        assert not token.permits(other, Act.READ), other
    assert key.check(key.issue("s", "t", READ, "t_kvtable")).permits("s/t_kvtable/0", Act.READ)
    master = key.check(key.master())
    assert master.ends_at == math.inf
    assert master.permits("_system/_tables/scopes", Act.DELETE)
    assert not key.check(key.issue("_system", "_tables", UPDATE)).permits("_system/_tables/scopes", Act.READ)


def test_token_expiry_after_a_change_of_the_wall_clock() -> None:
    """A token is valid for at most its lifetime, and not at all if it seems to be issued in the future."""
    wall, steady = Time(), Time()
    key = TokenKey(SECRET, 600, wall, steady)
    token = key.issue("s", "t", READ)
    wall.now = NOW + 100
    assert key.check(token).ends_at == steady.now + 500
    for seconds_back in (1, 600):
        wall.now = NOW - seconds_back
        assert key.check(token).ends_at == steady.now + 600
    for wall.now in (NOW - 601, NOW - 86_400, NOW + 86_400):
        with pytest.raises(TokenExpiredError):
            key.check(token)


def forged(header: dict[str, Any], claims: dict[str, Any], key: bytes = b"") -> str:
    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    return f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}.{part(key)}"


CLAIMS = {"sub": "segmentstoreresource", "aud": "segmentstore", "*": "READ_UPDATE"}
WRONG = {
    "empty": "",
    "text": "token",
    "parts": "a.b.c",
    "unsigned": forged({"alg": "none"}, CLAIMS),
    "claims to be signed": forged({"alg": "HS512", "typ": "JWT"}, CLAIMS, b"x" * 64),
    "another key": jwt.encode(CLAIMS, b"o" * 64, "HS512"),
    "another algorithm": jwt.encode(CLAIMS, SECRET, "HS256"),
    "another audience": jwt.encode({**CLAIMS, "aud": "somebody"}, SECRET, "HS512"),
    "no audience": jwt.encode({"*": "READ_UPDATE"}, SECRET, "HS512"),
    "invalid expiry": jwt.encode({**CLAIMS, "exp": [1]}, SECRET, "HS512"),
    "deep header": base64.urlsafe_b64encode(b"[" * 30_000).decode().rstrip("=") + ".e30.x",
    "not ASCII": "é.ü.ß",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_invalid_token_is_rejected(text: str) -> None:
    with pytest.raises(PermissionDeniedError):
        TokenKey(SECRET).check(text)


def test_invalid_claims_permit_nothing() -> None:
    claims = {"aud": "segmentstore", "prn::/scope:s/stream:t": "ALL", "*": ["READ"], "prn::/scope:s": "READ_UPDATE"}
    token = TokenKey(SECRET).check(jwt.encode(claims, SECRET, "HS512"))
    assert not token.permits("s/t/0", Act.READ)


def test_key_in_a_folder_is_created_private_and_reused(tmp_path: Path) -> None:
    first = TokenKey.in_folder(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert TokenKey.in_folder(tmp_path).check(first.issue("s", "t", READ))
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(DataFolderError, match=KEY_FILE):
        TokenKey.in_folder(tmp_path)


def test_invalid_key_or_lifetime_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="64"):
        TokenKey(b"short")
    with pytest.raises(InvalidArgumentError, match="lifetime"):
        TokenKey(SECRET, 0)
    with pytest.raises(InvalidArgumentError, match="missing"):
        TokenKey.in_file(tmp_path / "missing")
    (tmp_path / "key").write_bytes(SECRET + b"\n")
    assert TokenKey.in_file(tmp_path / "key").check(TokenKey(SECRET).master())


def test_resources_have_pravegas_form() -> None:
    assert CLUSTER == "prn::/"
    assert scope_resource("s") == "prn::/scope:s"
    assert stream_resource("s", "t") == "prn::/scope:s/stream:t"
    assert stream_resource("s", "_RGt.1-x") == "prn::/scope:s/stream:_RGt.1-x"
    assert reader_group_resource("s", "g") == "prn::/scope:s/reader-group:g"
    assert table_resource("s", "k") == "prn::/scope:s/key-value-table:k"


@given(st.text("ab/.*", max_size=8), st.text("ab/.", max_size=10))
def test_patterns_match_like_a_regular_expression(pattern: str, text: str) -> None:
    import re

    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
    assert Grant(pattern, Permission.READ).matches(text) is expected


def test_highest_permission_applies_and_none_overrides_all() -> None:
    grants = Permissions.parse("prn::/scope:a/*,READ; prn::/scope:a/stream:b,READ_UPDATE ;prn::/scope:a/stream:c,NONE")
    assert grants.on("prn::/scope:a/stream:b") is Permission.READ_UPDATE
    assert grants.on("prn::/scope:a/stream:c") is Permission.NONE
    assert grants.on("prn::/scope:a/stream:d") is Permission.READ
    assert grants.on("prn::/scope:b/stream:d") is Permission.NONE
    assert Permissions.parse(str(grants)) == grants


@pytest.mark.parametrize("text", ["prn::/", "prn::/,WRITE", "scope:a,READ", ",READ", "prn::/,read"])
def test_invalid_grant_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Permissions.parse(text)


@given(st.text(max_size=30), st.text(max_size=30))
def test_quoted_name_never_matches_another_resource(scope: str, stream: str) -> None:
    resource = stream_resource(scope, stream)
    assert resource.count("/") == 2
    assert resource.isascii()
    assert not set(resource) & set("*;,<>?~ ")
