"""The official package creates, lists, updates, seals and deletes scopes and streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import nadi
from nadi.client.control.policy import RetentionPolicy, ScalingPolicy
from tests.compatibility.conftest import Official
from tests.compatibility.events import by_key, numbered, texts
from tests.compatibility.official_python import OfficialError

pytestmark = pytest.mark.compatibility


def test_scopes(official: Callable[[], Official], scope: str) -> None:
    manager = official().manager
    assert manager.create_scope(scope) is True
    assert manager.create_scope(scope) is False
    assert scope in manager.list_scope()
    manager.create_stream(scope, "stream", 1)
    with pytest.raises(OfficialError, match="not empty"):
        manager.delete_scope(scope)
    manager.seal_stream(scope, "stream")
    manager.delete_stream(scope, "stream")
    assert manager.delete_scope(scope) is True
    assert manager.delete_scope(scope) is False
    assert scope not in manager.list_scope()


@pytest.mark.parametrize("name", ["", "under_score", "a/b", "a:b", "x" * 256])
def test_invalid_names_are_rejected(official: Callable[[], Official], scope: str, name: str) -> None:
    manager = official().manager
    with pytest.raises(OfficialError, match=r"[Ii]nvalid|name"):
        manager.create_scope(name)
    manager.create_scope(scope)
    with pytest.raises(OfficialError, match=r"[Ii]nvalid|name"):
        manager.create_stream(scope, name, 1)


def test_missing_scope_and_stream(official: Callable[[], Official], scope: str) -> None:
    manager = official().manager
    with pytest.raises(OfficialError):
        manager.create_stream(scope, "stream", 1)
    assert manager.delete_scope(scope) is False
    assert manager.list_stream(scope) == []  # the package ignores the status
    manager.create_scope(scope)
    assert manager.delete_stream(scope, "stream") is False
    with pytest.raises(OfficialError):
        manager.seal_stream(scope, "stream")
    with pytest.raises(OfficialError):
        manager.get_stream_tags(scope, "stream")


def test_policies_and_tags(official: Callable[[], Official], nadi_manager: nadi.StreamManager, scope: str) -> None:
    client = official()
    manager, scaling, retention = (
        client.manager,
        client.package.StreamScalingPolicy,
        client.package.StreamRetentionPolicy,
    )
    manager.create_scope(scope)

    def stored(stream: str) -> tuple[ScalingPolicy, RetentionPolicy | None, tuple[str, ...]]:
        configuration = nadi_manager.stream_configuration(scope, stream)
        return configuration.scaling, configuration.retention, configuration.tags

    created = manager.create_stream_with_policy(
        scope, "fixed", scaling.fixed_scaling_policy(3), retention.none(), ["b", "a"]
    )
    assert created is True
    assert stored("fixed") == (ScalingPolicy.fixed(3), None, ("a", "b"))
    assert len(nadi_manager.current_segments(scope, "fixed")) == 3
    assert manager.get_stream_tags(scope, "fixed") == ["a", "b"]
    assert manager.create_stream_with_policy(scope, "fixed", scaling.fixed_scaling_policy(1)) is False
    assert stored("fixed") == (ScalingPolicy.fixed(3), None, ("a", "b"))

    by_data, by_size = scaling.auto_scaling_policy_by_data_rate(1_000, 2, 2), retention.by_size(10_000_000)
    manager.create_stream_with_policy(scope, "data", by_data, by_size)
    assert stored("data") == (ScalingPolicy.by_data_rate(1_000, 2, 2), RetentionPolicy.by_size(10_000_000), ())
    assert manager.get_stream_tags(scope, "data") in ([], None)

    by_events, by_time = scaling.auto_scaling_policy_by_event_rate(50, 3, 1), retention.by_time(3_600_000)
    manager.create_stream_with_policy(scope, "events", by_events, by_time, ["x"])
    assert stored("events") == (ScalingPolicy.by_event_rate(50, 3, 1), RetentionPolicy.by_time(3_600_000), ("x",))

    # an update replaces all of it
    assert manager.update_stream_with_policy(scope, "events", by_data, by_size, ["y", "z"]) is True
    assert stored("events") == (*stored("data")[:2], ("y", "z"))
    assert manager.get_stream_tags(scope, "events") == ["y", "z"]
    manager.update_stream_with_policy(scope, "events", scaling.fixed_scaling_policy(2))
    assert stored("events") == (ScalingPolicy.fixed(2), None, ())
    assert len(nadi_manager.current_segments(scope, "events")) == 2


def test_listings_of_several_pages(official: Callable[[], Official], scope: str) -> None:
    manager = official().manager  # the server gives pages of ten
    scopes = [f"{scope}-{number}" for number in range(25)]
    for name in scopes:
        manager.create_scope(name)
    assert sorted(name for name in manager.list_scope() if name.startswith(scope)) == sorted(scopes)
    streams = [f"stream-{number}" for number in range(30)]  # the last page is full
    for name in streams:
        manager.create_stream(scopes[0], name, 1)
    listed = [str(each) for each in manager.list_stream(scopes[0])]
    assert sorted(name for name in listed if not name.startswith("_")) == sorted(streams)
    assert len(listed) == len(set(listed))


def test_sealed_stream_is_read_to_its_end(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, "stream", 2)
    with pytest.raises(OfficialError, match=r"Not Sealed"):
        client.manager.delete_stream(scope, "stream")
    written = numbered(0, 100)
    client.extras.write(client.manager.create_writer(scope, "stream"), written)
    assert client.manager.seal_stream(scope, "stream") is True
    assert client.manager.seal_stream(scope, "stream") is True  # sealing again isn't an error
    group = client.manager.create_reader_group("readers", scope, "stream")
    assert by_key(client.extras.read(group.create_reader("reader"), 100)) == by_key(texts(written))


def test_writer_of_sealed_stream_fails_at_once(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, "stream", 1)
    writer = client.manager.create_writer(scope, "stream")
    client.extras.write(writer, numbered(0, 10))
    client.manager.seal_stream(scope, "stream")
    with pytest.raises(OfficialError):
        client.extras.write(writer, numbered(10, 20))


def test_deleted_stream_can_be_created_again(client: Official, nadi_manager: nadi.StreamManager, scope: str) -> None:
    for number in range(2):
        assert client.manager.create_stream(scope, "stream", 1) is True
        written = numbered(number * 10, number * 10 + 10)
        client.extras.write(client.manager.create_writer(scope, "stream"), written)
        tail = nadi_manager.stream_info(scope, "stream").tail
        read = [event.data for event in nadi_manager.read_events(scope, "stream", end=tail)]
        assert by_key(read) == by_key(texts(written))
        client.manager.seal_stream(scope, "stream")
        assert client.manager.delete_stream(scope, "stream") is True
        assert client.manager.delete_stream(scope, "stream") is False
    assert client.manager.list_stream(scope) == []
