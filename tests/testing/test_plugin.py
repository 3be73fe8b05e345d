"""The pytest plugin is cheap to load, and nadi doesn't need pytest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nadi.client import StreamManager
from nadi.testing import RestartableServer, fill_stream

HEAVY = ("grpc", "pyarrow", "numpy", "msgspec", "fastavro", "google.protobuf", "asyncio", "uvloop", "rich", "typer")


def modules_after(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", script], text=True).split())


def test_the_plugin_loads_nothing_heavy() -> None:
    loaded = modules_after("import nadi.testing.plugin")
    assert {name for name in loaded if name.startswith("nadi")} == {"nadi", "nadi.testing", "nadi.testing.plugin"}
    assert loaded.isdisjoint(HEAVY)


def test_the_kit_works_without_pytest() -> None:
    loaded = modules_after("from nadi.testing import RestartableServer, await_events, fill_stream, read_stream")
    assert "nadi.testing.streams" in loaded
    assert not any(name.partition(".")[0] in ("pytest", "_pytest") for name in loaded)


SCOPES: list[str] = []


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_scope_of_its_own(
    nadi_server: RestartableServer, nadi_manager: StreamManager, nadi_scope: str, turn: int
) -> None:
    assert nadi_scope in nadi_manager.list_scopes()
    assert not set(SCOPES) & set(nadi_manager.list_scopes()), "the last one was deleted, with its stream"
    SCOPES.append(nadi_scope)
    fill_stream(nadi_manager, nadi_scope, "s", [b"a"])
    if turn == 1:
        nadi_server.kill()  # the scope is deleted all the same


def test_plain_serializers_bring_no_library() -> None:
    loaded = modules_after("import nadi.client.serializers")
    assert loaded.isdisjoint({"fastavro", "avro", "nadi.client.serializers.arrow", "nadi.client.serializers.protobuf"})
