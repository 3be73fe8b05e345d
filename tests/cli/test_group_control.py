"""`nadi group`: create, reset and delete groups, and create checkpoints."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import nadi
from tests.cli.test_streams import Shell


@pytest.fixture(scope="module", autouse=True)
def streams(manager: nadi.StreamManager) -> None:
    for stream in ("meters", "clicks"):
        manager.create_stream("home", stream, 1)
        with manager.create_writer("home", stream) as writer:
            writer.write_batch([f"{stream} {number}".encode() for number in range(10)])
        cuts = manager.cuts("home", stream)
        manager.bookmarks("home").create(f"mid-{stream}", cuts.after(cuts.head(), 5))


def unread_events(manager: nadi.StreamManager, group: str) -> dict[str, int]:
    positions = manager.reader_group_manager("home").get_reader_group(group).stream_cuts()
    return {
        name: cuts.events_between(cut, cuts.tail())
        for name, cut in positions.items()
        if (cuts := manager.cuts(*name.split("/")))
    }


def test_group_create_and_reset_set_positions(shell: Shell, manager: nadi.StreamManager) -> None:
    created = shell.run(
        "group", "create", "home", "both", "meters", "clicks", "--from", "meters=mid-meters", "--from", "head"
    )
    assert created.output == "created reader group home/both\n"
    assert "already exists" in shell.run("group", "create", "home", "both", "meters").output
    assert unread_events(manager, "both") == {"home/meters": 5, "home/clicks": 10}
    shell.run("group", "reset", "home", "both", "--to", "tail", "--yes")
    assert unread_events(manager, "both") == {"home/meters": 0, "home/clicks": 0}
    reset = ["group", "reset", "home", "both"]
    assert "home/both" in shell.run(*reset, "--to", "2020-01-01T00:00Z", code=1).output, "it asks first"
    shell.run(*reset, "--to", "2020-01-01T00:00Z", "--to", "home/clicks=mid-clicks", "--yes")
    assert unread_events(manager, "both") == {"home/meters": 10, "home/clicks": 5}
    text = manager.bookmarks("home").get("mid-meters").cut.as_text()
    for wrong, named in (
        ([], "--to or --checkpoint"),
        (["--to", "head", "--checkpoint", "x"], "--to or --checkpoint"),
        (["--to", "meters=head"], "--to home/clicks=POSITION"),
        (["--to", "head", "--to", "tail"], "--to"),
        (["--to", "meters=head", "--to", "home/meters=tail"], "--to"),
        (["--to", "meters=head", "--to", "clicks=tail", "--to", "tail"], "--to tail"),
        (["--to", text], "home/clicks"),
        (["--checkpoint", "none"], "'none'"),
    ):
        assert named in shell.run(*reset, *wrong, "--yes", code=2).stderr.replace("\n", " "), wrong
    assert unread_events(manager, "both") == {"home/meters": 10, "home/clicks": 5}


def test_group_checkpoints_and_offline_readers(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("group", "create", "home", "one", "meters", "--retention", "automatic", "--checkpoint-every", "1h")
    assert shell.json("group", "checkpoints", "home", "one") == []
    group = manager.reader_group_manager("home").get_reader_group("one")
    with group.create_reader("r1") as reader, ThreadPoolExecutor(1) as pool:
        seen = 0
        while seen < 3:
            seen += reader.read_next_event(10) is not None
        making = pool.submit(shell.json, "group", "checkpoint", "home", "one", "noon")
        while not making.done():
            reader.read_next_event(0.1)
        (noon,) = making.result()
        (only,) = manager.current_segments("home", "meters")
        assert (noon["checkpoint"], noon["stream"]) == ("noon", "home/meters")
        assert nadi.StreamCut.from_text(noon["cut"]).positions.keys() == {only.segment_id}
        refused = shell.run("group", "offline", "home", "one", "r2", "--yes", code=2).stderr
        assert "'r2'" in refused
        assert "r1" in refused
        assert (
            shell.run("group", "offline", "home", "one", "r1", "--yes").output == "reader r1 of home/one is offline\n"
        )
        assert group.online_readers() == []
        assert [row["checkpoint"] for row in shell.json("group", "checkpoints", "home", "one")] == ["noon"]
        shell.run("group", "reset", "home", "one", "--checkpoint", "noon", "--yes")
        assert group.stream_cuts()["home/meters"] == nadi.StreamCut.from_text(noon["cut"])
    assert shell.run("group", "delete", "home", "one", code=1).output.startswith("Delete reader group home/one")
    assert shell.run("group", "delete", "home", "one", "--yes").output == "deleted reader group home/one\n"
    assert "home/one" in shell.run("group", "delete", "home", "one", "--yes", code=1).stderr
