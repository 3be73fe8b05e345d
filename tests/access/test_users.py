"""Passwords, the users file, and the command `nadi passwd`."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nadi.access import authentication as gate_module
from nadi.access.authentication import Gate
from nadi.access.permissions import Permission, Permissions
from nadi.access.users import User, hash_password, is_password, read_users, write_users
from nadi.cli.app import app
from nadi.errors import InvalidArgumentError, NotAuthenticatedError, PermissionDeniedError, UnavailableError

from .support import PASSWORD, password_hash, users_file

SALT, KEY, LONG_KEY = (base64.b64encode(bytes([size] * size)).decode() for size in (16, 32, 64))
HASH = f"scram${SALT}$600000${KEY}${KEY}$210000${LONG_KEY}${LONG_KEY}"


def basic(user: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@asynccontextmanager
async def gate_of(path: Path) -> AsyncIterator[Gate]:
    gate = Gate(path)
    try:
        yield gate
    finally:
        gate.close()


def test_password_matches_only_its_hash() -> None:
    stored = hash_password("pässword:with colon")
    assert ":" not in stored
    assert stored != hash_password("pässword:with colon"), "each hash has a separate salt"
    assert is_password("pässword:with colon", stored)
    assert not is_password("password:with colon", stored)
    assert not is_password("", stored)


@pytest.mark.parametrize(
    "line",
    [
        "ann",
        "ann:secret:prn::/,READ",
        f"ann:{HASH.replace('600000', '600000000000')}:prn::/,READ",
        f"ann:{HASH.replace('210000', '4095')}:prn::/,READ",
        f"ann:{HASH.replace(SALT, '!')}:prn::/,READ",
        f"ann:{HASH.replace(LONG_KEY, KEY)}:prn::/,READ",
        f"ann:{HASH}:prn::/,WRITE",
        f":{HASH}:prn::/,READ",
    ],
    ids=["name", "plain", "costly", "cheap", "garbled", "short", "right", "nameless"],
)
def test_invalid_line_is_named_without_its_secret(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# users\n\n{line}\n")
    with pytest.raises(InvalidArgumentError, match="line 3") as caught:
        read_users(path)
    assert KEY not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_users_file_round_trip(tmp_path: Path) -> None:
    users = {"ann": User("ann", password_hash(), Permissions.parse("prn::/scope:a/*,READ;prn::/,NONE"))}
    write_users(tmp_path / "users", users)
    assert read_users(tmp_path / "users") == users
    assert stat.S_IMODE((tmp_path / "users").stat().st_mode) == 0o600
    assert password_hash() not in repr(users["ann"])


async def test_gate_reloads_a_changed_users_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = users_file(tmp_path, {"ann": "prn::/,READ", "bob": "prn::/,READ"})
    async with gate_of(path) as gate:
        await gate.authorized(basic("ann"), "prn::/", Permission.READ)
        with pytest.raises(PermissionDeniedError):
            await gate.authorized(basic("ann"), "prn::/", Permission.READ_UPDATE)
        users_file(tmp_path, {"ann": "prn::/,READ_UPDATE"})
        await gate.authorized(basic("ann"), "prn::/", Permission.READ_UPDATE)
        with pytest.raises(NotAuthenticatedError):
            await gate.caller(basic("bob"))
        path.write_text("half an ed")
        await gate.authorized(basic("ann"), "prn::/", Permission.READ_UPDATE)
        os.unlink(path)
        await gate.authorized(basic("ann"), "prn::/", Permission.READ_UPDATE)
        users_file(tmp_path, {"ann": "prn::/,READ"})
        with pytest.raises(PermissionDeniedError):
            await gate.authorized(basic("ann"), "prn::/", Permission.READ_UPDATE)
        assert (gate.failed_logins, gate.refusals) == (1, 2)
    assert str(path) in caplog.text


async def test_correct_password_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0

    def counted(password: str, stored_hash: str) -> bool:
        nonlocal checks
        checks += 1
        return is_password(password, stored_hash)

    monkeypatch.setattr(gate_module, "is_password", counted)

    async with gate_of(users_file(tmp_path, {"ann": "prn::/,READ"})) as gate:
        await asyncio.gather(*(gate.caller(basic("ann")) for _ in range(20)))
        await gate.caller(basic("ann"))
        assert checks == 1
        for _ in range(2):
            with pytest.raises(NotAuthenticatedError):
                await gate.caller(basic("ann", "wrong"))
        assert checks == 3


def slow_checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make each check take 10 ms; return the list of checked passwords."""
    checked: list[str] = []

    def check(password: str, stored_hash: str) -> bool:
        checked.append(password)
        time.sleep(0.01)
        return password == PASSWORD

    monkeypatch.setattr(gate_module, "is_password", check)
    return checked


async def test_password_guessing_does_not_delay_other_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = slow_checks(monkeypatch)

    async with gate_of(users_file(tmp_path, {"ann": "prn::/,READ"})) as gate:
        flood = [asyncio.create_task(gate.caller(basic("ann", f"guess {n}"), f"10.0.0.1:{n}")) for n in range(200)]
        await asyncio.sleep(0)
        assert (await gate.caller(basic("ann"), "10.0.0.2:7")).name == "ann"
        assert checked.index(PASSWORD) <= 4, "addresses take turns"
        kinds = [type(error) for error in await asyncio.gather(*flood, return_exceptions=True)]
        assert kinds.count(UnavailableError) > 100
        with pytest.raises(UnavailableError):
            await asyncio.gather(*(gate.caller(basic("ann", f"more {n}"), "10.0.0.1:1") for n in range(200)))


async def test_check_without_waiters_is_cancelled_and_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checked = slow_checks(monkeypatch)

    async with gate_of(users_file(tmp_path, {"ann": "prn::/,READ"})) as gate:
        for pause_s in (0.0, 0.001, 0.02):
            tasks = [asyncio.create_task(gate.caller(basic("ann", f"{pause_s} {n}"), "a:1")) for n in range(20)]
            last = asyncio.create_task(gate.caller(basic("ann", f"{pause_s} 19"), "b:1"))
            await asyncio.sleep(pause_s)
            for task in tasks:
                task.cancel()
            with pytest.raises(NotAuthenticatedError):
                await asyncio.wait_for(last, 60)  # another waiter of the same check
        assert len(checked) < 30, "checks without waiters are cancelled"
        gone = asyncio.create_task(gate.caller(basic("ann")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert (await gate.caller(basic("ann"))).name == "ann", "the next check is not affected"
        del tasks, last, task, gone
        await asyncio.sleep(0.05)
        gc.collect()

    gc.collect()
    caplog.clear()  # messages of earlier tests
    assert "never retrieved" not in caplog.text


async def test_unchanged_password_stays_cached_when_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = slow_checks(monkeypatch)
    grants = {"ann": "prn::/,READ", "bob": "prn::/,READ"}
    path = users_file(tmp_path, grants)

    async with gate_of(path) as gate:
        for name in grants:
            await gate.authorized(basic(name), "prn::/", Permission.READ)
        users = read_users(path)
        write_users(
            path,
            {
                "ann": replace(users["ann"], permissions=Permissions.parse("prn::/,READ_UPDATE")),
                "bob": replace(users["bob"], password_hash=hash_password("another")),
            },
        )
        await gate.authorized(basic("ann"), "prn::/", Permission.READ_UPDATE)
        assert len(checked) == 2
        await gate.caller(basic("bob"))
        assert len(checked) == 3, "a changed password is checked again"


def test_nadi_passwd_adds_changes_and_removes_users(tmp_path: Path) -> None:
    path = tmp_path / "users"
    run = CliRunner().invoke

    def passwd(*more: str, password: str = "first\n") -> int:
        return run(app, ["passwd", str(path), *more], input=password).exit_code

    grants = ("--grant", "prn::/scope:home/*,READ_UPDATE", "--grant", "prn::/,READ")
    assert passwd("ann", "--password-stdin", *grants) == 0
    ann = read_users(path)["ann"]
    assert is_password("first", ann.password_hash)
    assert str(ann.permissions) == "prn::/scope:home/*,READ_UPDATE;prn::/,READ"
    assert passwd("ann", password="second\nsecond\n") == 0, "prompts twice and keeps the grants"
    assert is_password("second", read_users(path)["ann"].password_hash)
    assert read_users(path)["ann"].permissions == ann.permissions
    assert passwd("ann", "--keep-password", "--grant", "prn::/,READ") == 0
    assert is_password("second", read_users(path)["ann"].password_hash)
    assert str(read_users(path)["ann"].permissions) == "prn::/,READ"
    assert passwd("bob", "--password-stdin", "--grant", "nonsense") != 0
    assert passwd("b:b", "--password-stdin") != 0
    assert passwd("bob", "--password-stdin", password="\n") != 0
    assert passwd("bob", "--remove") != 0
    assert set(read_users(path)) == {"ann"}
    assert passwd("ann", "--remove") == 0
    assert read_users(path) == {}
