"""Logins by SCRAM at the gate; real clients log in in tests/kafka/test_scram.py."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from nadi.access.authentication import Gate
from nadi.access.permissions import Caller
from nadi.errors import NotAuthenticatedError
from nadi.limits import LOGIN_FAILED_S, LOGINS_AT_ONCE

from .support import PASSWORD, users_file

scramp = pytest.importorskip("scramp", reason="no scramp: pip install 'nadi[kafka]'")


async def logged_in(gate: Gate, user: str, password: str) -> Caller | None:
    client = scramp.ScramClient(["SCRAM-SHA-256"], user, password)
    login = gate.begin_scram("SCRAM-SHA-256", b"key")
    reply, caller = await gate.continue_scram(login, client.get_client_first().encode(), "192.0.2.1")
    assert caller is None
    client.set_server_first(reply.decode())
    reply, caller = await gate.continue_scram(login, client.get_client_final().encode(), "192.0.2.1")
    client.set_server_final(reply.decode())
    return caller


async def test_guesses_take_time_and_logins_do_not(tmp_path: Path) -> None:
    gate = Gate(users_file(tmp_path))
    try:
        began = time.monotonic()
        guesses = [asyncio.create_task(logged_in(gate, "writer", f"guess {number}")) for number in range(6)]
        await asyncio.sleep(0)
        caller = await logged_in(gate, "writer", PASSWORD)
        assert caller is not None
        assert caller.name == "writer"
        assert time.monotonic() - began < LOGIN_FAILED_S, "it doesn't wait for the guesses"
        for guess in guesses:
            with pytest.raises(NotAuthenticatedError):
                await guess
        assert time.monotonic() - began >= 6 / LOGINS_AT_ONCE * LOGIN_FAILED_S
        assert gate.failed_logins == 6
    finally:
        gate.close()
