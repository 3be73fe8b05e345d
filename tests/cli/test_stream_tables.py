"""`nadi stream-table`, and what `nadi stream delete` and `nadi sql` know of stream tables."""

from __future__ import annotations

import pytest

from nadi.client import StreamManager
from tests.cli.test_streams import Shell


@pytest.fixture(scope="module", autouse=True)
def meters(manager: StreamManager) -> None:
    """Stream home/meters has six readings of three meters; slice "early" has the first three."""
    manager.create_stream("home", "meters", 2)
    cuts = manager.cuts("home", "meters")
    with manager.create_writer("home", "meters") as writer:
        for number in range(6):
            writer.write_event(b'{"meter": "m%d", "wh": %d}' % (number % 3, number), f"m{number % 3}")
            if number == 2:
                writer.flush()
                manager.slices("home").create("early", cuts.head(), cuts.tail())


def test_tables_are_defined_shown_and_deleted(shell: Shell) -> None:
    assert "no such stream table" in shell.run("stream-table", "list", "home").output
    define = ("stream-table", "create", "home", "meters", "--schema", "meter string, wh long", "--key", "meter")
    assert shell.run(*define).output == "created stream table meters of stream home/meters: meter string, wh int64\n"
    assert "already exists" in shell.run(*define, code=1).output
    assert shell.run(*define, "--replace", "--note", "power").exit_code == 0
    assert "has no column 'wh" in shell.run(*define, "--replace", "--key", "whh", code=1).output
    (row,) = shell.json("stream-table", "list", "home", "--stream", "meters")
    assert (row["table"], row["key"], row["schema"], row["note"]) == (
        "meters", ["meter"], "meter string, wh long", "power",
    )  # fmt: skip
    assert "meter string, wh int64" in shell.run("stream-table", "show", "home", "meters").output
    assert "define it, or check its spelling" in shell.run("stream-table", "show", "home", "metres", code=1).output
    assert (
        "there was no stream table home/metres" in shell.run("stream-table", "delete", "home", "metres", code=1).stderr
    )
    assert "the stream stays" in shell.run("stream-table", "delete", "home", "meters").output
    assert shell.json("stream-table", "list", "home") == []


def test_queries_have_its_columns(shell: Shell) -> None:
    shell.run("stream-table", "create", "home", "usage", "--stream", "meters", "--schema", "meter string, wh long")
    told = shell.run("sql", "select meter, sum(wh) as wh from home.usage group by meter order by 1", "-o", "csv")
    assert told.stdout == "meter,wh\nm0,3\nm1,5\nm2,7\n"
    told = shell.run("sql", "select sum(wh) as wh from usage for slice 'early'", "--scope", "home", "-o", "csv")
    assert told.stdout == "wh\n3\n"
    assert "append_time" in shell.run("sql", "select * from home.usage", "-o", "csv").stdout
    shell.run("stream-table", "delete", "home", "usage")


def test_queries_have_latest_rows_and_changes(shell: Shell) -> None:
    shell.run("stream-table", "create", "home", "last", "--stream", "meters", "--schema", "meter string, wh long",
              "--key", "meter")  # fmt: skip
    shell.run("bookmark", "create", "home", "meters", "now")
    first = (("slice", "show", "home", "early"), "m0,0\nm1,1\nm2,2\n")
    end = shell.json(*first[0])[0]["end"]
    for name, told in (
        ("latest('home.last')", "m0,3\nm1,4\nm2,5\n"),
        ("LATEST ( 'home.last' ) for system_time as of 'now' as last", "m0,3\nm1,4\nm2,5\n"),
        (f"latest('home.last') for system_time as of '{end}'", first[1]),
    ):
        assert shell.run("sql", f"select meter, wh from {name} order by 1", "-o", "csv").stdout == f"meter,wh\n{told}"
    counted = "select _change_type as what, count(*) as n from {} group by all order by all"
    told = shell.run("sql", counted.format("changes('last')"), "--scope", "home", "-o", "csv").stdout
    assert told == "what,n\ninsert,3\nupdate_after,3\nupdate_before,3\n"
    later = f"changes('home.last') for system_time from '{end}' to 'now'"
    assert shell.run("sql", counted.format(later), "-o", "csv").stdout == "what,n\nupdate_after,3\nupdate_before,3\n"
    both = "select a.wh - b.wh as d from latest('home.last') a join home.meters b using (segment_id, \"offset\")"
    assert "wh" in shell.run("sql", both, code=1).output, "home.meters has no such column"
    for query, why in (
        ("from latest('last')", "names no scope"),
        ("from latest('home.meters')", "stream table 'meters'"),
        ("from latest('home.last') for slice 'early'", "as of 'place'"),
        ("from latest('home.last') for system_time from 'head' to 'tail'", "as of 'place'"),
        ("from changes('home.last') for slice 'early'", "from 'place' to 'place'"),
    ):
        assert why in shell.run("sql", query, code=1).output
    assert shell.run("sql", "select 1 as latest, 'latest(''x'')' as changes", "-o", "csv").stdout == (
        "latest,changes\n1,latest('x')\n"
    )
    shell.run("stream-table", "delete", "home", "last")
    shell.run("stream-table", "create", "home", "my.last", "--stream", "meters", "--schema", "meter string, wh long",
              "--key", "meter")  # fmt: skip
    for query, more in (("from latest('home.\"my.last\"')", ()), ("from latest('\"my.last\"')", ("--scope", "home"))):
        assert len(shell.json("sql", query, *more)) == 3
    shell.run("stream-table", "delete", "home", "my.last")


def test_changes_are_written_to_a_stream(shell: Shell) -> None:
    shell.run("stream-table", "create", "home", "usage", "--stream", "meters", "--schema", "meter string, wh long",
              "--key", "meter")  # fmt: skip
    shell.run("stream", "create", "home", "usage-changes")
    write = ("stream-table", "write-changes", "home", "usage", "usage-changes", "--end")
    (early,) = shell.json("slice", "list", "home")
    assert "wrote 3 changes of home/usage to usage-changes" in shell.run(*write, early["end"]).output
    assert "wrote 6 changes" in shell.run(*write, "tail").output
    assert "wrote 0 changes" in shell.run(*write, "tail").output
    told = shell.run("sql", "select meter, wh from latest('home.usage-changes') order by 1", "-o", "csv").stdout
    assert told == "meter,wh\nm0,3\nm1,4\nm2,5\n"
    refused = shell.run(*write, "tail", "--if-unknown", "perhaps", code=1).output
    assert ("on_unknown_commit is" in refused, "wrote" in refused) == (True, False)
    assert "stream table 'metres'" in shell.run("stream-table", "write-changes", "home", "metres", "x", code=1).output
    for name in ("usage", "usage-changes"):
        shell.run("stream-table", "delete", "home", name)


def test_a_streams_deletion_asks_about_its_tables(shell: Shell) -> None:
    shell.run("stream", "create", "home", "gone")
    shell.run("stream-table", "create", "home", "gone", "--schema", "wh long")
    shell.run("stream", "seal", "home", "gone", "--yes")
    asked = shell.run("stream", "delete", "home", "gone", stdin=b"n\n", code=1).output
    assert "Delete stream home/gone and all its events, and the tables defined on it (gone)?" in asked
    assert "deleted stream" in shell.run("stream", "delete", "home", "gone", stdin=b"y\n").output
    assert shell.json("stream-table", "list", "home") == []
