"""`nadi scope`, `stream`, `bookmark` and `slice`: data, exit codes and the wording of their messages."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

import nadi
from nadi.cli.app import app
from nadi.defaults import VALUE_FORMATS


class Shell:
    """Runs commands against a server."""

    def __init__(self, uri: str) -> None:
        self._environment = {"NADI_CONTROLLER": uri, "COLUMNS": "120"}

    def run(self, *arguments: str, code: int | None = 0, stdin: bytes | None = None) -> Result:
        """Run a command; code: None for any failure."""
        result = CliRunner().invoke(app, arguments, env=self._environment, input=stdin)
        assert result.exit_code == code or (code is None and result.exit_code in (1, 2)), result.output
        return result

    def json(self, *arguments: str) -> Any:
        return msgspec.json.decode(self.run(*arguments, "--json").stdout)


def test_stream_create_list_show_delete(shell: Shell) -> None:
    assert "No matching streams in scope home." in shell.run("stream", "list", "home").output
    assert shell.run("stream", "create", "home", "clicks", "--segments", "3", "--tag", "web").output == (
        "created stream home/clicks\n"
    )
    assert "already exists" in shell.run("stream", "create", "home", "clicks").output
    assert shell.json("stream", "list", "home") == [
        {"stream": "clicks", "segments": 3, "sealed": False, "tags": ["web"]}
    ]
    assert shell.json("stream", "list", "home", "--tag", "other") == []
    assert {"scope": "home"} in shell.json("scope", "list")
    (shown,) = shell.json("stream", "show", "home", "clicks")
    assert (shown["bytes"], shown["head"]) == (0, shown["tail"])
    shell.run("stream", "delete", "home", "clicks", "--yes", code=1)
    shell.run("stream", "seal", "home", "clicks", "--yes")
    assert shell.run("stream", "delete", "home", "clicks", "--yes").output == "deleted stream home/clicks\n"
    missing = shell.run("stream", "show", "home", "clicks", code=1)
    assert "home/clicks" in missing.stderr
    assert shell.run("scope", "delete", "home", code=1).output.startswith("Delete scope home?"), "it asks first"


def test_stream_update_changes_only_given_options(shell: Shell, server: nadi.standalone.EmbeddedServer) -> None:
    shell.run("stream", "create", "home", "changed", "--segments", "2", "--tag", "a", "--tag", "b")

    def update(*options: str) -> str:
        return shell.run("stream", "update", "home", "changed", *options).output.removeprefix("stream home/changed ")

    with nadi.StreamManager(server.controller_uri) as manager:
        manager.update_stream("home", "changed", timestamp_aggregation_timeout_ms=5)
        assert update("--events-per-s", "10", "--scale-factor", "4") == (
            "has 10 events/s per segment, at least 2 segments, up to 4 pieces per split\n"
        )
        assert (
            update("--segments", "3") == "has 10 events/s per segment, at least 3 segments, up to 4 pieces per split\n"
        )
        assert update("--kib-per-s", "7", "--retention", "7d", "--retention-max", "30d").endswith("keeps 7d to 30d\n")
        assert update("--retention-over-bookmarks") == "keeps 7d to 30d over bookmarks\n"
        assert update("--retention", "8d") == "keeps 8d to 30d over bookmarks\n"
        assert update("--retention-under-bookmarks", "--retention-max", "9d") == "keeps 8d to 9d\n"
        assert update("--remove-tag", "a", "--add-tag", "c") == "has the tags b, c\n"
        updated = manager.stream_configuration("home", "changed")
        assert updated.scaling == nadi.ScalingPolicy.by_data_rate(7, 4, 3)
        assert updated.retention == nadi.RetentionPolicy.by_time(8 * 86_400_000, 9 * 86_400_000)
        assert (updated.tags, updated.timestamp_aggregation_timeout_ms) == (("b", "c"), 5)
        assert update("--fixed", "--everything", "--watermark-timeout", "2s") == (
            "has 3 segments, fixed, keeps everything, has watermarks that wait 2s\n"
        )
        updated = manager.stream_configuration("home", "changed")
        assert (updated.scaling, updated.retention) == (nadi.ScalingPolicy.fixed(3), None)
        assert (updated.tags, updated.timestamp_aggregation_timeout_ms) == (("b", "c"), 2000)
        own = ["--event-time", "at", "--retention", "9d", "--retention-by-event-time"]
        assert update(*own) == "keeps 9d by event time, has the event time at\n"
        assert update("--retention", "10d") == "keeps 10d by event time\n"
        assert update("--retention-by-arrival") == "keeps 10d\n"
        assert update("--everything", "--no-event-time") == "keeps everything, has the event time removed\n"
        for wrong, says in (
            (["--retention", "1GiB", "--retention-by-event-time"], "retention by event time needs an age"),
            (["--retention", "1d", "--retention-by-event-time"], "event time"),
            ([], "nothing to change"),
            (["--scale-factor", "3"], "--scale-factor can't be used with a fixed number"),
            (["--fixed", "--kib-per-s", "3"], "can't be combined"),
            (["--retention-max", "3d"], "set its minimum with --retention"),
            (["--retention", "3d", "--everything"], "omit the other retention options"),
            (["--remove-tag", "a"], "doesn't have tag 'a': its tags are b, c"),
            (["--remove-tag", "b", "--add-tag", "b"], "both added and removed"),
        ):
            assert says in shell.run("stream", "update", "home", "changed", *wrong, code=2).stderr.replace("\n", " ")
        assert manager.stream_configuration("home", "changed") == updated, "errors change nothing"


def test_list_supports_three_output_formats(shell: Shell) -> None:
    shell.run("stream", "create", "home", "forms", "--tag", "form", "--tag", "two")
    options = "stream", "list", "home", "--tag", "form"
    assert shell.run(*options, "-o", "csv").stdout == (
        'stream,segments,sealed,tags\nforms,1,false,"[""form"",""two""]"\n'
    )
    assert shell.run(*options, "-o", "table").stdout == shell.run(*options).stdout
    assert shell.run(*options, "-o", "json").stdout == shell.run(*options, "--json").stdout
    shell.run(*options, "-o", "json", "--json")
    assert "--json and --output can't be combined" in shell.run(*options, "--json", "-o", "csv", code=2).stderr
    shell.run(*options, "-o", "xml", code=2)


def test_every_listing_command_has_output_options(shell: Shell) -> None:
    showing = {"list", "show", "status", "segments", "scaling-log", "scrub", "options"}
    options = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in _all(typer.main.get_command(app), "nadi")
        if name.split()[-1] in showing
    }
    assert len(options) > 15
    assert [name for name, names in options.items() if not {"-o", "--json"} <= names] == []


def _all(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for own, each in command.commands.items():
            yield from _all(each, f"{name} {own}")
    else:
        yield name, command


def test_bookmarks_and_slices_delimit_reads(shell: Shell, server: nadi.standalone.EmbeddedServer) -> None:
    shell.run("stream", "create", "home", "sunshine")
    with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("home", "sunshine") as writer:
        writer.write_event(b"one").result(60)
        shell.run("bookmark", "create", "home", "sunshine", "noon", "--note", "[red]sun[/red]", "--tag", "day")
        writer.write_event(b"two").result(60)
        shell.run("bookmark", "create", "home", "sunshine", "dusk")
        writer.write_event(b"\xff").result(60)
    assert "already exists" in shell.run("bookmark", "create", "home", "sunshine", "noon", code=1).stderr
    listed = shell.run("bookmark", "list", "home").output
    assert listed.index("dusk") < listed.index("noon")
    assert "[red]sun[/red]" in listed, "notes aren't markup"
    (noon,) = shell.json("bookmark", "list", "home", "--tag", "day")
    text = shell.run("bookmark", "show", "home", "noon").stdout.strip()
    assert text == noon["cut"]
    assert shell.json("bookmark", "show", "home", "noon") == [noon]
    assert shell.run("read", "home", "sunshine", "--from", "noon", "--to", "dusk").stdout == "two\n"
    assert shell.run("read", "home", "sunshine", "--from", text, "--limit", "1").stdout == "two\n"
    assert shell.run("read", "home", "sunshine", "--from", "tail").stdout == ""
    assert shell.run("read", "home", "sunshine", "--from", "2020-01-01T00:00Z", "--to", "dusk").stdout == "one\ntwo\n"
    assert shell.run("read", "home", "sunshine", "--to", "2020-01-01 00:00+01:00").stdout == ""
    assert "2020-01-01T00:00" in shell.run("read", "home", "sunshine", "--from", "2020-01-01T00:00", code=2).stderr
    last = shell.run("read", "home", "sunshine", "--from", "dusk", "--json").stdout
    assert msgspec.json.decode(last) == {"segment_id": 0, "offset": 22, "base64": base64.b64encode(b"\xff").decode()}
    assert "'dawn'" in shell.run("read", "home", "sunshine", "--from", "dawn", code=1).stderr
    created = shell.run("slice", "create", "home", "sunshine", "week-45", "--from", "noon", "--to", "dusk")
    assert created.output == "created slice week-45 of home/sunshine: 11 bytes\n"
    assert shell.run("read", "home", "week-45", "--slice", "--key", "any").stdout == "two\n"
    (shown,) = shell.json("slice", "show", "home", "week-45")
    assert (shown["bytes"], shown["events"]) == (11, 1)
    shell.run("slice", "tag", "home", "week-45", "--tag", "weeks")
    shell.run("slice", "rename", "home", "week-45", "week-46")
    assert [row["name"] for row in shell.json("slice", "list", "home", "--tag", "weeks")] == ["week-46"]
    assert shell.run("slice", "delete", "home", "week-46").output == "deleted slice home/week-46; the events stay\n"
    shell.run("bookmark", "tag", "home", "noon", "--remove", "day")
    shell.run("bookmark", "rename", "home", "noon", "midday")
    assert "bookmark home/noon doesn't exist" in shell.run("bookmark", "delete", "home", "noon", code=1).stderr
    shell.run("bookmark", "create", "home", "sunshine", "long-ago", "--at", "2020-01-01T00:00Z")
    created = shell.run(
        "slice", "create", "home", "sunshine", "all", "--from", "2020-01-01T00:00Z", "--to", "2200-01-01T00:00Z"
    )
    assert created.output == "created slice all of home/sunshine: 31 bytes\n"
    shell.run("stream", "truncate", "home", "sunshine", "--at", "midday", "--yes")
    assert shell.run("read", "home", "sunshine", "--to", "dusk").stdout == "two\n"


def test_command_with_an_invalid_controller_fails(shell: Shell) -> None:
    assert "nowhere" in shell.run("stream", "list", "home", "--controller", "nowhere", code=2).stderr


def test_stream_retention_and_its_holders(server: nadi.standalone.EmbeddedServer, shell: Shell) -> None:
    created = shell.run("stream", "create", "home", "kept", "--retention", "100B", "--retention-max", "10MiB")
    assert created.output == "created stream home/kept\n"
    (shown,) = shell.json("stream", "show", "home", "kept")
    assert (shown["retention"], shown["oldest"], shown["holders"]) == ("100B to 10MiB", "-", [])
    shell.run("bookmark", "create", "home", "kept", "begin")
    with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("home", "kept") as writer:
        for _ in range(5):
            writer.write_event(bytes(92))
        writer.flush()
    (shown,) = shell.json("stream", "show", "home", "kept")
    (holder,) = shown["holders"]
    assert (holder["kind"], holder["name"], holder["bytes_after"]) == ("bookmark", "begin", 500)
    assert shown["oldest"].startswith("20")
    assert (
        "truncation delayed by bookmark begin: 500 bytes after it" in shell.run("stream", "show", "home", "kept").output
    )
    updated = shell.run("stream", "update", "home", "kept", "--retention", "36h", "--retention-over-bookmarks").output
    assert updated == "stream home/kept keeps 36h over bookmarks\n"
    assert shell.run("stream", "update", "home", "kept", "--everything").output == "stream home/kept keeps everything\n"
    for wrong, says in (
        (["--retention", "7"], "neither an age nor a size"),
        (["--retention", "2MB", "--retention-max", "1MB"], "--retention-max 1MB is below --retention 2MB"),
        (["--retention-max", "1d"], "set its minimum with --retention"),
        (["--everything", "--retention-over-bookmarks"], "omit the other retention options"),
    ):
        assert says in shell.run("stream", "update", "home", "kept", *wrong, code=2).output.replace("\n", " "), wrong
    refused = shell.run("stream", "create", "home", "more", "--retention-max", "1d", code=2).output
    assert "--retention" in refused


def test_slice_create_without_stream_uses_the_stream_of_its_bookmarks(shell: Shell) -> None:
    for stream in ("gas", "water"):
        shell.run("stream", "create", "home", stream)
        shell.run("bookmark", "create", "home", stream, f"{stream}-start")
    shell.run("write", "home", "gas", stdin=b"12 Wh\n")
    shell.run("bookmark", "create", "home", "gas", "gas-end")
    for name, bounds in (
        ("both", ["--from", "gas-start", "--to", "gas-end"]),
        ("one", ["--from", "gas-start"]),
        ("other", ["--to", "gas-end"]),
    ):
        assert shell.run("slice", "create", "home", name, *bounds).output == (
            f"created slice {name} of home/gas: 13 bytes\n"
        )
    assert "neither is a bookmark" in shell.run("slice", "create", "home", "all", code=2).stderr
    two = shell.run("slice", "create", "home", "two", "--from", "gas-start", "--to", "water-start", code=2).stderr
    assert "they have bookmarks of gas and water)" in two
    assert "more than a stream and a name" in shell.run("slice", "create", "home", "gas", "a", "b", code=2).stderr
    assert shell.run("slice", "create", "home", "water", "of-water").output.startswith(
        "created slice of-water of home/water"
    )


@pytest.mark.parametrize("words", [("search", "create"), ("search", "standing", "create")])
def test_search_create_help_lists_formats_and_field_kinds(shell: Shell, words: tuple[str, ...]) -> None:
    text = " ".join(shell.run(*words, "--help").output.replace("│", " ").split())
    assert "json objects with these fields, or text as a single field" in text
    assert "text, keyword, long, double, date, timestamp" in text


def test_usage_line_names_arguments_in_capitals(shell: Shell) -> None:
    assert "stream show [OPTIONS] SCOPE STREAM" in shell.run("stream", "show", "--help").output
    assert "write [OPTIONS] SCOPE STREAM [FILE...]" in shell.run("write", "--help").output
    assert "[OPTIONS] SCOPE STREAM ID..." in shell.run("transaction", "commit", "--help").output


def test_help_lists_all_value_formats(shell: Shell) -> None:
    for words in (("lake", "run"), ("stream-table", "create")):
        text = " ".join(shell.run(*words, "--help").output.replace("│", " ").split())
        assert ", ".join(VALUE_FORMATS) in text
