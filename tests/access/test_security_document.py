"""The tables of docs/security.md: a user with exactly the grants of a line can do what the line says, and no more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client import KeyValueTableConfiguration, aio
from nadi.client.manager.streams import stores_of
from nadi.errors import PermissionDeniedError
from nadi.spark.intents import SinkRecord
from nadi.spark.ledger import TABLE
from nadi.spark.options.parsed import WriteOptions
from nadi.standalone import EmbeddedServer

from .support import guarded, user, users_file
from .test_names import NAMES, PARTS, UNKNOWN

DOCUMENT = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
GRANTS, INTERNAL = "| resource | for |", "| name | what it is |"
SCOPE = "prn::/scope:home"

# by line and grants: the permitted acts, among those that ACTS lists for the line
LINES: dict[str, dict[str, set[str]]] = {
    "prn::/": {
        "prn::/,READ": {"list scopes"},
        "prn::/,READ_UPDATE": {"list scopes", "create a scope", "delete a scope"},
    },
    "prn::/audit": {
        "prn::/audit,READ": {"read the audit stream"},
        "prn::/,READ_UPDATE;prn::/scope:*,READ_UPDATE": set(),
    },
    "prn::/scope:S": {
        f"{SCOPE},READ": {"list streams"},  # creating a nadi group reads its streams' heads
        f"{SCOPE},READ;{SCOPE}/*,READ": {"list streams", "make a group", "delete a group"},
        f"{SCOPE},READ_UPDATE;{SCOPE}/*,READ": {
            "list streams", "make a group", "delete a group", "create a stream", "create a table"
        },
    },
    "prn::/scope:S/stream:T": {
        f"{SCOPE}/stream:T,READ": {"read", "look"},
        f"{SCOPE}/stream:T,READ_UPDATE": {"read", "look", "write", "scale", "truncate", "seal", "delete"},
    },
    "prn::/scope:S/reader-group:G": {
        f"{SCOPE}/reader-group:G,READ;{SCOPE}/stream:T,READ": {"read in a group"},
        f"{SCOPE}/reader-group:G,READ_UPDATE": set(),
        f"{SCOPE}/stream:T,READ_UPDATE": set(),
    },
    "prn::/scope:S/key-value-table:K": {
        f"{SCOPE}/key-value-table:K,READ;{SCOPE}/stream:K_kvtable,READ_UPDATE": set(),
        f"{SCOPE}/key-value-table:K,READ_UPDATE": {"delete the table"},
        f"{SCOPE}/key-value-table:K,READ_UPDATE;{SCOPE}/stream:K_kvtable,READ": {"get", "delete the table"},
        f"{SCOPE}/key-value-table:K,READ_UPDATE;{SCOPE}/stream:K_kvtable,READ_UPDATE": {
            "get", "put", "delete the table"
        },
    },
}  # fmt: skip
Manager = nadi.StreamManager
ACTS: dict[str, dict[str, Callable[[Manager], Any]]] = {  # deletions last
    "prn::/": {
        "list scopes": lambda user: user.list_scopes(),
        "create a scope": lambda user: user.create_scope("new"),
        "delete a scope": lambda user: user.delete_scope("new"),
    },
    "prn::/audit": {"read the audit stream": lambda user: next(iter(user.read_events("_system", "audit")))},
    "prn::/scope:S": {
        "list streams": lambda user: user.list_streams("home"),
        "make a group": lambda user: user.reader_group_manager("home").create_reader_group("mine", "T"),
        "delete a group": lambda user: user.reader_group_manager("home").delete_reader_group("mine"),
        "create a stream": lambda user: user.create_stream("home", "new", 1),
        "create a table": lambda user: user.create_key_value_table("home", "new", KeyValueTableConfiguration(4)),
    },
    "prn::/scope:S/stream:T": {
        "look": lambda user: user.stream_configuration("home", "T"),
        "read": lambda user: next(iter(user.read_events("home", "T"))),
        "write": lambda user: user.create_writer("home", "T").write_event(b"x", "k").result(60),
        "truncate": lambda user: user.truncate_stream(user.stream_info("home", "T").head),
        "scale": lambda user: user.scale_stream(
            "home", "T", [*user.stream_info("home", "T").tail.positions], [(0.0, 1.0)]
        ),
        "seal": lambda user: user.seal_stream("home", "T"),
        "delete": lambda user: user.delete_stream("home", "T"),
    },
    "prn::/scope:S/reader-group:G": {"read in a group": lambda user: read_in_the_group(user)},
    "prn::/scope:S/key-value-table:K": {
        "get": lambda user: user.key_value_table("home", "K").get(b"key."),
        "put": lambda user: user.key_value_table("home", "K").put(b"key.", b"other"),
        "delete the table": lambda user: user.delete_key_value_table("home", "K"),
    },
}


def read_in_the_group(manager: Manager) -> None:
    group = manager.reader_group_manager("home").get_reader_group("G")
    with group.create_reader("reader") as reader:
        read = reader.read_next_event(timeout=60)
        assert read is not None


def rows(header: str) -> Iterator[str]:
    """Yield the first cells of a table in the document."""
    table = DOCUMENT[DOCUMENT.index(header) :].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield line.split("|")[1].strip()


def test_every_line_of_the_tables_is_tested() -> None:
    assert [name.strip("`") for name in rows(GRANTS)] == list(LINES) == list(ACTS)
    for line, cases in LINES.items():
        assert set().union(*cases.values()) == set(ACTS[line]), "each act is permitted in a case"
    documented = [name for cell in rows(INTERNAL) for name in re.findall(r"`([^`]+)`", cell)]
    tested = {
        "T": ("home", "s") in NAMES,
        "T/…#transaction.…": any("#transaction." in part for part in PARTS),
        "…#transient.…": any("#transient." in part for part in PARTS),
        "_MARK<T>": ("home", "_MARKs") in NAMES,
        "_RG<G>": ("home", "_RGg") in NAMES,
        "_RG<G>_kvtable": ("home", "_RGg_kvtable") in NAMES,
        "K_kvtable": ("home", "s_kvtable") in NAMES,
        "_bookmarks_kvtable": ("home", "_bookmarks_kvtable") in NAMES,
        "_schemas_kvtable": ("home", "_schemas_kvtable") in NAMES,
        "_streamtables_kvtable": ("home", "_streamtables_kvtable") in NAMES,
        "_system/audit": ("_system", "audit") in NAMES,
        "_system/…": ("_system", "s") in NAMES,
        "_cluster/scrub": ("_cluster", "scrub") in NAMES,
        "_…": ("home", "_x") in UNKNOWN and ("_other", "s") in UNKNOWN,
    }
    assert all(tested.values())
    assert set(documented) == set(tested)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedServer, Path]]:
    folder = tmp_path_factory.mktemp("server")
    with guarded(folder) as server:
        yield server, folder / "settings"


def prepared(root: Manager) -> None:
    """Create a scope with all objects that the lines refer to."""
    for scope in root.list_scopes():
        if not scope.startswith("_"):
            root.delete_scope(scope, recursive=True)
    root.create_scope("home")
    root.create_stream("home", "T", 1)
    root.create_writer("home", "T").write_event(b"event", "k").result(60)
    root.reader_group_manager("home").create_reader_group("G", "T")
    root.create_key_value_table("home", "K", KeyValueTableConfiguration(4))
    root.key_value_table("home", "K").put(b"key.", b"value")


@pytest.mark.parametrize(("line", "grants"), [(line, grants) for line, cases in LINES.items() for grants in cases])
def test_grants_permit_exactly_what_their_line_says(
    server: tuple[EmbeddedServer, Path], line: str, grants: str
) -> None:
    running, settings = server
    users_file(settings, {"root": "prn::*,READ_UPDATE", "user": grants})
    uri = running.controller_uri
    with Manager(uri, credentials=user("root")) as root, Manager(uri, credentials=user("user")) as holder:
        prepared(root)
        for act, do in ACTS[line].items():
            if act in LINES[line][grants]:
                do(holder)
            else:
                with pytest.raises(PermissionDeniedError):
                    do(holder)


def test_java_client_needs_a_write_token_for_the_tables_plain_name(server: tuple[EmbeddedServer, Path]) -> None:
    running, settings = server
    table, plain, segments = (f"{SCOPE}/{name}" for name in ("key-value-table:K", "stream:K", "stream:K_kvtable"))
    users = {
        "java": f"{table},READ_UPDATE;{plain},READ_UPDATE;{segments},READ",
        "nadi": f"{table},READ_UPDATE;{segments},READ_UPDATE",
    }
    users_file(settings, {"root": "prn::*,READ_UPDATE", **users})
    with Manager(running.controller_uri, credentials=user("root")) as root:
        prepared(root)

    async def ask(name: str) -> bool:
        async with aio.StreamManager(running.controller_uri, credentials=user(name)) as manager:
            await stores_of(manager).controller.segment_endpoint("home/K_kvtable/0.#epoch.0")
            try:
                await stores_of(manager).controller.delegation_token("home", "K", write=True)
            except PermissionDeniedError:
                return False
            return True

    assert asyncio.run(ask("java"))
    assert not asyncio.run(ask("nadi"))


def test_spark_sink_needs_update_on_its_record_table(server: tuple[EmbeddedServer, Path]) -> None:
    running, settings = server
    stream, record = f"{SCOPE}/stream:T,READ_UPDATE", f"{SCOPE}/stream:{TABLE}_kvtable"
    users = {"sink": f"{stream};{record},READ_UPDATE", "none": stream, "reads": f"{stream};{record},READ"}
    users_file(settings, {"root": "prn::*,READ_UPDATE", **users})
    with Manager(running.controller_uri, credentials=user("root")) as root:
        prepared(root)

    async def commit(name: str) -> None:
        async with aio.StreamManager(running.controller_uri, credentials=user(name)) as manager:
            writer = await manager.create_transaction_writer("home", "T")
            txn = await writer.begin_txn()
            await SinkRecord(manager, WriteOptions.from_spark({"scope": "home", "stream": "T"}), name).commit(
                0, [txn.txn_id]
            )

    for name in ("none", "reads"):
        with pytest.raises(PermissionDeniedError):
            asyncio.run(commit(name))
    asyncio.run(commit("sink"))
