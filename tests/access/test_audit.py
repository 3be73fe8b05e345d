"""The audit stream of real servers: its records, its readers, and attempts to change it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import nadi
from nadi.access.audit import AuditedAct, AuditTrail
from nadi.cli.app import app
from nadi.client import QuotaLimits, RetentionPolicy, aio
from nadi.client.manager.streams import stores_of
from nadi.errors import NadiError, NotAuthenticatedError, PermissionDeniedError, StreamNotSealedError, UnavailableError
from nadi.limits import AUDIT_NOTES, AUDIT_QUEUE
from nadi.runtime import REAL
from nadi.standalone import EmbeddedServer, ServerSecurity
from nadi.wire import commands as wire
from tests.support.waiting import until

from .support import PASSWORD, user, users_file

DOCUMENT = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
GRANTS = {
    "root": "prn::*,READ_UPDATE",
    "auditor": "prn::/audit,READ",
    "writer": "prn::/scope:home,READ_UPDATE;prn::/scope:home/*,READ_UPDATE;prn::/scope:_system,READ",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("audited")
    security = ServerSecurity(users_file=users_file(folder / "settings", GRANTS))
    with nadi.embedded(folder / "data", security=security, rest_port=0, kafka_port=0) as server:
        with connected(server, "root") as root:
            root.create_scope("home")
        yield server


def connected(server: EmbeddedServer, name: str) -> nadi.StreamManager:
    return nadi.StreamManager(server.controller_uri, credentials=user(name))


def records(server: EmbeddedServer, name: str = "auditor") -> list[dict[str, Any]]:
    with connected(server, name) as manager:
        end = manager.cuts("_system", "audit").tail()
        return [json.loads(event.data) for event in manager.read_events("_system", "audit", end=end)]


def found(server: EmbeddedServer, kind: str, subject: str) -> list[dict[str, Any]]:
    return [
        record["data"]
        for record in records(server)
        if record["type"] == f"nadi.{kind}" and record["subject"] == subject
    ]


def test_acknowledged_operations_have_records(server: EmbeddedServer) -> None:
    with connected(server, "root") as root:
        root.create_scope("first")
        assert found(server, "scope.create", "first")[0]["user"] == "root", "at once: it was acknowledged"
    with connected(server, "writer") as writer:
        writer.create_stream("home", "meters", 1)
        writer.update_stream("home", "meters", retention=RetentionPolicy.by_time(10**9))
        with writer.create_writer("home", "meters") as events:
            events.write_event(b"a", "key").result(10)
        writer.truncate_stream(writer.cuts("home", "meters").tail())
        with pytest.raises(StreamNotSealedError):
            writer.delete_stream("home", "meters")
        writer.scale_stream("home", "meters", [0], [(0.0, 0.5), (0.5, 1.0)])
        writer.seal_stream("home", "meters")
        writer.delete_stream("home", "meters")
    of_meters = [record for record in records(server) if record["subject"] == "home/meters"]
    assert [record["type"] for record in of_meters] == [
        f"nadi.stream.{action}" for action in ("create", "update", "truncate", "delete", "scale", "seal", "delete")
    ]
    assert {(r["data"]["user"], r["data"]["door"]) for r in of_meters} == {("writer", "grpc")}
    assert [r["data"]["outcome"] for r in of_meters] == ["done"] * 3 + ["failed"] + ["done"] * 3
    assert of_meters[3]["data"]["detail"] == "STREAM_NOT_SEALED"
    assert "retentionParam: 1000000000" in of_meters[1]["data"]["request"]


def test_records_are_cloud_events(server: EmbeddedServer) -> None:
    written = records(server)
    assert written
    for record in written:
        assert record["specversion"] == "1.0"
        assert record["source"].startswith("nadi/")
        assert record["time"].endswith("Z")
        assert record["datacontenttype"] == "application/json"
    assert len({record["id"] for record in written}) == len(written)


def test_quota_changes_and_rest_requests_are_recorded(server: EmbeddedServer) -> None:
    with connected(server, "root") as root:
        root.create_quota("user/ann", QuotaLimits(bytes_in=77))
    assert "77" in found(server, "quota.change", "user/ann")[0]["request"]
    with httpx.Client(base_url=server.rest_uri, auth=("root", PASSWORD)) as rest:
        assert rest.post("/v1/scopes", json={"scopeName": "rested"}).status_code == 201
        assert rest.post("/v1/scopes", json={"scopeName": "rested"}).status_code == 409
        assert rest.delete("/v1/scopes/rested").status_code == 204
        assert rest.delete("/v1/quotas/user/ann").status_code == 204
    assert [record["outcome"] for record in found(server, "scope.create", "rested")] == ["done", "failed"]
    (deleted,) = found(server, "scope.delete", "rested")
    assert (deleted["door"], deleted["user"], deleted["address"]) == ("rest", "root", "127.0.0.1")
    assert found(server, "quota.change", "user/ann")[-1]["door"] == "rest"


def test_logins_and_refusals_are_recorded(server: EmbeddedServer) -> None:
    with (
        nadi.StreamManager(server.controller_uri, credentials=nadi.Basic("writer", "wrong")) as wrong,
        pytest.raises(NotAuthenticatedError),
    ):
        wrong.list_scopes()
    with connected(server, "writer") as writer, pytest.raises(PermissionDeniedError):
        writer.create_scope("stolen")
    until(lambda: {"done", "refused"} <= {record["outcome"] for record in found(server, "login", "writer")})
    until(lambda: any(record["user"] == "writer" for record in found(server, "access", "prn::/")))


async def test_wire_commands_that_change_streams_are_recorded(server: EmbeddedServer) -> None:
    async with aio.StreamManager(server.controller_uri, credentials=user("writer")) as writer:
        await writer.create_stream("home", "wired", 1)
        segment = "home/wired/0.#epoch.0"
        stores = stores_of(writer)
        events = await writer.create_writer("home", "wired")
        await (await events.write(b"a"))
        await stores.ask(wire.TruncateSegment(0, segment, 9, ""), wire.SegmentTruncated)  # type: ignore[arg-type]
        await stores.ask(wire.SealSegment(0, segment, ""), wire.SegmentSealed)  # type: ignore[arg-type]
    for action in ("segment.truncate", "segment.seal"):
        (record,) = await asyncio.to_thread(found, server, action, segment)
        assert (record["user"], record["door"], record["outcome"]) == ("writer", "wire", "done")
        assert record["request"] == ("at 9" if action == "segment.truncate" else "")


def test_topics_created_over_kafka_are_recorded_with_their_user(server: EmbeddedServer) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"}
    login |= {"sasl.username": "root", "sasl.password": PASSWORD}
    admin = AdminClient({"bootstrap.servers": server.kafka_address, **login})
    admin.create_topics([NewTopic("payments", 2)])["payments"].result(30)
    with pytest.raises(Exception, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("payments", 2)])["payments"].result(30)
    admin.delete_topics(["payments"])["payments"].result(30)
    first, again = found(server, "stream.create", "payments")
    assert (first["user"], first["door"], first["outcome"]) == ("root", "kafka", "done")
    assert (again["outcome"], again["detail"]) == ("failed", "topic_already_exists")
    assert found(server, "stream.delete", "payments")[0]["user"] == "root"


@pytest.mark.parametrize("name", ["root", "auditor", "writer"])
async def test_nobody_changes_the_audit_stream(server: EmbeddedServer, name: str) -> None:
    """Attempts over gRPC, the wire protocol and REST, also by an administrator with all grants."""
    before = await asyncio.to_thread(records, server)
    scope, stream, segment = "_system", "audit", "_system/audit/0.#epoch.0"
    async with aio.StreamManager(server.controller_uri, credentials=user(name)) as manager:
        if name != "writer":
            tail = await manager.cuts(scope, stream).tail()
            with pytest.raises(NadiError):
                await manager.truncate_stream(tail)

        async def forge() -> None:
            writer = await manager.create_writer(scope, stream, ack_timeout=2)
            await (await writer.write(b"forged"))

        calls: list[Callable[[], Awaitable[object]]] = [
            forge,
            lambda: manager.update_stream(scope, stream, retention=RetentionPolicy.by_time(1)),
            lambda: manager.seal_stream(scope, stream),
            lambda: manager.delete_stream(scope, stream),
            lambda: manager.delete_scope(scope, recursive=True),
            lambda: manager.scale_stream(scope, stream, [0], [(0.0, 0.5), (0.5, 1.0)]),
            lambda: manager.create_stream(scope, "other"),
        ]
        for call in calls:
            with pytest.raises(NadiError):
                await call()
        stores = stores_of(manager)
        for command in (
            wire.TruncateSegment(0, segment, 1, ""),
            wire.SealSegment(0, segment, ""),
            wire.DeleteSegment(0, segment, ""),
            wire.SetupAppend(0, bytes(16), segment, ""),
        ):
            with pytest.raises(NadiError):
                await stores.ask(command, wire.SegmentSealed)  # type: ignore[arg-type]
    async with httpx.AsyncClient(base_url=server.rest_uri, auth=(name, PASSWORD)) as rest:
        path = "/v1/scopes/_system/streams/audit"
        assert (await rest.delete(path)).status_code == 403
        assert (await rest.put(f"{path}/state", json={"streamState": "SEALED"})).status_code == 403
        assert (await rest.post(f"{path}/events", content=b"forged")).status_code in (400, 403)
    after = await asyncio.to_thread(records, server)
    assert after[: len(before)] == before
    assert all(record["specversion"] == "1.0" for record in after)


def test_only_auditors_read(server: EmbeddedServer) -> None:
    assert records(server)
    with pytest.raises(PermissionDeniedError):
        records(server, "writer")


def test_operation_goes_on_and_is_recorded_if_its_caller_leaves(server: EmbeddedServer) -> None:
    async def create_and_leave() -> None:
        async with aio.StreamManager(server.controller_uri, credentials=user("writer")) as writer:
            task = asyncio.create_task(writer.create_stream("home", "left", 200))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(create_and_leave())
    with connected(server, "writer") as writer:
        time.sleep(0.5)
        if "left" in writer.list_streams("home"):
            until(lambda: bool(found(server, "stream.create", "home/left")))


def test_changes_of_users_are_recorded(tmp_path: Path) -> None:
    users = users_file(tmp_path / "settings", GRANTS)
    with nadi.embedded(tmp_path / "data", security=ServerSecurity(users_file=users)) as server:
        until(lambda: bool(records(server)))
        users_file(tmp_path / "settings", GRANTS | {"new": "prn::/,READ"})
        until(lambda: bool(found(server, "users.change", "new")))


def test_auditor_reads_the_stream_on_the_command_line(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("method", "Basic"), ("username", "auditor"), ("password", PASSWORD)):
        monkeypatch.setenv(f"pravega_client_auth_{name}", value)
    command = next(line for line in DOCUMENT.splitlines() if line.startswith("nadi read _system"))
    result = CliRunner().invoke(app, [*command.split()[1:], "--limit", "1", "--controller", server.controller_uri])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[0])["specversion"] == "1.0"


def test_retention_by_policy_and_switching_off(tmp_path: Path) -> None:
    users = users_file(tmp_path / "settings", GRANTS)
    for retention_s, policy in ((0, None), (86_400, RetentionPolicy.by_time(86_400_000))):
        security = ServerSecurity(users_file=users, audit_retention_s=retention_s)
        with nadi.embedded(tmp_path / "data", security=security) as server, connected(server, "auditor") as auditor:
            assert auditor.stream_configuration("_system", "audit").retention == policy
    with (
        nadi.embedded(tmp_path / "off", security=ServerSecurity(users_file=users, audit="off")) as server,
        connected(server, "root") as root,
    ):
        assert root.create_scope("home")
        assert "audit" not in root.list_streams("_system")


# --- the trail alone -----------------------------------------------------------------------------


def act(action: str) -> AuditedAct:
    return AuditedAct(action=action, subject="x", user="ann")


async def test_operations_wait_for_their_record_and_are_refused_when_too_many_wait() -> None:
    trail, stored, may_store = AuditTrail("here", REAL), list[bytes](), asyncio.Event()
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    async def store(batch: object) -> None:
        await may_store.wait()
        stored.extend(batch)  # type: ignore[arg-type]

    keeping = asyncio.create_task(trail.keep(store))
    waiting = [asyncio.create_task(trail.run(act("do"), work())) for _ in range(AUDIT_QUEUE)]
    await asyncio.sleep(0.1)
    assert len(done) == AUDIT_QUEUE
    assert not any(task.done() for task in waiting)
    with pytest.raises(UnavailableError, match="audit stream"):
        await trail.run(act("do"), work())
    assert len(done) == AUDIT_QUEUE, "nothing was done"
    may_store.set()
    await asyncio.gather(*waiting)
    assert len(stored) == AUDIT_QUEUE
    keeping.cancel()


async def test_floods_of_refusals_are_counted() -> None:
    trail, stored = AuditTrail("here", REAL), list[dict[str, Any]]()

    async def store(batch: Any) -> None:
        stored.extend(map(json.loads, batch))

    keeping = asyncio.create_task(trail.keep(store))
    for _ in range(10 * AUDIT_NOTES):
        trail.note(act("login"), "refused")
    await asyncio.sleep(1.1)
    trail.note(act("login"))
    await trail.flush()
    omitted = sum(int(record["data"].get("omitted", 0)) for record in stored)
    assert len(stored) + omitted == 10 * AUDIT_NOTES + 1
    assert len(stored) <= 2 * AUDIT_NOTES + 1
    keeping.cancel()


async def test_records_are_retried_until_they_are_stored(caplog: pytest.LogCaptureFixture) -> None:
    trail, tries = AuditTrail("here", REAL), list[Any]()

    async def store(batch: Any) -> None:
        tries.append(list(batch))
        if len(tries) < 3:
            raise UnavailableError("not yet")

    async def work() -> int:
        return 5

    keeping = asyncio.create_task(trail.keep(store))
    assert await trail.run(act("do"), work()) == 5
    assert len(tries) == 3
    assert tries[0] == tries[2]
    keeping.cancel()
