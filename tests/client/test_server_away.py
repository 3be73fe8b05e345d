"""A server that is gone while readers wait: each says so within the client's time, and goes on when it is back."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client import KeyValueTableConfiguration, StreamManager
from nadi.client.manager.streams import stores_of
from nadi.errors import RequestTimeoutError
from tests.support.ports import free_port

TIMEOUT_S = 1.0


class Away:
    """A server that can be killed and started again at its address, and a client of it."""

    def __init__(self, folder: Path) -> None:
        self._port, self._folder = free_port(), folder
        self.start()
        self.manager = StreamManager(self.server.controller_uri)

    def start(self) -> None:
        self.server = nadi.embedded(self._folder, port=self._port, containers=1)

    def be_impatient(self) -> None:
        """From now on the client waits for its server for a second; until then it has as long as others."""
        stores_of(self.manager._core).controller.timeout_s = TIMEOUT_S


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Away]:
    away = Away(tmp_path / "data")
    yield away
    away.manager.close()
    away.server.kill()


def told_in_time(read: Callable[[], Any]) -> None:
    def took_s() -> float:
        begun = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            read()
        return time.monotonic() - begun

    assert any(took_s() < 4 * TIMEOUT_S for _ in range(5))  # the machine may stand still now and then


def test_blocking_readers_say_that_the_server_is_gone_and_go_on_when_it_is_back(away: Away) -> None:
    manager = away.manager
    manager.create_scope("sc")
    for stream in ("events", "bytes"):
        manager.create_stream("sc", stream, 1)
    groups = manager.reader_group_manager("sc")
    groups.create_reader_group("group", "events", refresh_ms=50, dead_after_ms=1_000)
    table = manager.table("sc", "table")
    table.create()
    with ExitStack() as stack:
        writer = stack.enter_context(manager.create_writer("sc", "events"))
        hasty = manager.create_writer("sc", "bytes", ack_timeout=TIMEOUT_S)
        bytes_writer = stack.enter_context(manager.create_byte_writer("sc", "bytes"))
        reader = stack.enter_context(manager.create_reader("sc", "events"))
        of_group = stack.enter_context(groups.get_reader_group("group").create_reader("one"))
        of_bytes = stack.enter_context(manager.create_byte_reader("sc", "bytes", follow=True, timeout=None))
        away.be_impatient()
        writer.write_event(b"before").result(60)
        bytes_writer.write(b"before")
        bytes_writer.flush()
        found = reader.next_block(60)
        assert found is not None
        assert found[1].events() == [b"before"]
        read = of_group.read_next_event(60)
        assert read is not None
        assert read.event == b"before"
        assert of_bytes.read(6) == b"before"

        away.server.kill()
        told_in_time(reader.next_block)
        told_in_time(of_group.read_next_event)
        told_in_time(lambda: of_bytes.read(1))
        told_in_time(lambda: table.get(b"k"))
        told_in_time(lambda: hasty.write_event(b"lost").result(60))
        told_in_time(lambda: manager.create_scope("other"))
        told_in_time(lambda: manager.list_streams("sc"))
        told_in_time(lambda: list(manager.read_events("sc", "events")))
        told_in_time(lambda: list(manager.read_segment_range("sc/events/0.#epoch.0", 0, 14)))

        away.start()
        writer.write_event(b"after").result(60)
        bytes_writer.write(b"after")
        bytes_writer.flush()
        found = _again(lambda: reader.next_block(60))
        assert found[1].events() == [b"after"]
        assert _again(lambda: of_group.read_next_event(60)).event == b"after"
        assert _again(lambda: of_bytes.read(5)) == b"after"
        assert _again(lambda: table.get(b"k")) is None


def _again(read: Callable[[], Any]) -> Any:
    """What it gives once the client has found its server again."""
    for _ in range(60):
        try:
            return read()
        except RequestTimeoutError:
            continue
    raise AssertionError("it does not go on")


def test_a_server_that_stands_still_is_noticed_within_the_clients_time(away: Away) -> None:
    """A read at the tail waits for no answer; that no word comes at all tells."""
    manager = away.manager
    manager.create_scope("still")
    manager.create_stream("still", "t", 1)
    away.be_impatient()
    with manager.create_reader("still", "t") as reader:
        with pytest.raises(RequestTimeoutError, match="nothing to read"):
            reader.next_block(0.5)
        os.kill(away.server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(RequestTimeoutError):
                reader.next_block(60)
            assert time.monotonic() - began < 30 * TIMEOUT_S
        finally:
            os.kill(away.server.pid, signal.SIGCONT)


def test_no_call_waits_longer_than_the_client_for_a_server_that_stands_still(away: Away) -> None:
    """All at once, so that each has the server as it was left: with open connections that say nothing."""
    manager = away.manager
    manager.create_scope("sc")
    for stream in ("events", "bytes", "map"):
        manager.create_stream("sc", stream, 1)
    with manager.create_byte_writer("sc", "bytes") as writer:
        writer.write(b"some")
    manager.create_key_value_table("sc", "kvt", KeyValueTableConfiguration(1))
    table = manager.key_value_table("sc", "kvt")
    state = manager.shared_map("sc", "map")
    groups = manager.reader_group_manager("sc")
    groups.create_reader_group("group", "events")
    group = groups.get_reader_group("group")
    of_bytes, unread = manager.create_byte_reader("sc", "bytes"), manager.create_byte_reader("sc", "bytes")
    waits: list[Callable[[], Any]] = [
        lambda: manager.create_byte_reader("sc", "bytes"),
        of_bytes.tail,
        lambda: unread.read(1),
        lambda: table.get(b"k"),
        lambda: table.put(b"k", b"v"),
        lambda: list(table.entries()),
        lambda: state.put("k", 1),
        state.refresh,
        lambda: group.create_reader("one"),
        lambda: group.reader_offline("one"),
        lambda: group.reset_reader_group([]),
        lambda: manager.key_value_table("sc", "kvt"),
        lambda: manager.delete_stream("sc", "events"),
    ]
    away.be_impatient()
    os.kill(away.server.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(waits)) as threads:
            began = time.monotonic()
            told = [one.exception(60) for one in [threads.submit(wait) for wait in waits]]
            took_s = time.monotonic() - began
    finally:
        os.kill(away.server.pid, signal.SIGCONT)
    assert [type(error) for error in told] == [RequestTimeoutError] * len(waits), told
    assert took_s < 15 * TIMEOUT_S


NOBODY = "nobody listens at 127.0.0.1:{}: start a server there (`nadi up`), or check the address"


def test_client_nobody_listens_says_so_once_within_a_second_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    said = NOBODY.format(port) + "; calls wait for it for up to 30 s"
    with StreamManager(f"tcp://127.0.0.1:{port}") as manager, ThreadPoolExecutor(3) as pool:
        for _ in range(2):  # each absence is reported
            caplog.clear()
            begun = time.monotonic()
            calls = [pool.submit(manager.create_scope, f"sc{number}") for number in range(3)]
            while not caplog.messages:
                assert time.monotonic() - begun < 20, "nothing was said"
                time.sleep(0.01)
            assert time.monotonic() - begun < 5  # 0.5 s where the machine doesn't stand still
            with nadi.embedded(tmp_path, port=port):
                for call in calls:
                    call.result(30)
            assert [message for message in caplog.messages if "nobody" in message] == [said]


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.create_scope("sc"),
        lambda manager: list(manager.read_events("sc", "st")),
        lambda manager: manager.create_writer("sc", "st"),
        lambda manager: manager.table("sc", "t").get(b"key"),
        lambda manager: manager.key_value_table("sc", "t").get("key"),
        lambda manager: manager.create_byte_reader("sc", "st"),
    ],
    ids=["create_scope", "read_events", "create_writer", "table", "key_value_table", "create_byte_reader"],
)
def test_client_nobody_listens_error_has_one_traceback(call: Callable[[StreamManager], Any]) -> None:
    port = free_port()
    with StreamManager(f"tcp://127.0.0.1:{port}", timeout=0.3) as manager, pytest.raises(RequestTimeoutError) as caught:
        call(manager)
    assert str(caught.value).endswith(NOBODY.format(port))
    assert "The above exception" not in (text := "".join(traceback.format_exception(caught.value)))
    assert "During handling" not in text


def test_client_host_unknown_says_so() -> None:
    address = "no-such-host.invalid:9090"
    with (
        StreamManager(f"tcp://{address}", timeout=2) as manager,
        pytest.raises(RequestTimeoutError, match=f"the host of {address} has no known address: check its spelling"),
    ):
        manager.create_scope("sc")
