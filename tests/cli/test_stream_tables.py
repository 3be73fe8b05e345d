"""`nadi stream-table`, and stream tables in `nadi stream delete` and `nadi sql`."""

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


def test_stream_table_create_list_show_delete(shell: Shell) -> None:
    assert shell.json("stream-table", "list", "home") == []
    define = ("stream-table", "create", "home", "meters", "--schema", "meter string, wh long", "--key", "meter")
    assert shell.run(*define).output == "created stream table meters of stream home/meters: meter string, wh int64\n"
    assert "already exists" in shell.run(*define, code=1).output
    assert shell.run(*define, "--replace", "--note", "power").exit_code == 0
    assert "'whh'" in shell.run(*define, "--replace", "--key", "whh", code=2).output
    (row,) = shell.json("stream-table", "list", "home", "--stream", "meters")
    assert (row["table"], row["key"], row["schema"], row["note"]) == (
        "meters", ["meter"], "meter string, wh long", "power",
    )  # fmt: skip
    assert "meter string, wh int64" in shell.run("stream-table", "show", "home", "meters").output
    assert "metres" in shell.run("stream-table", "show", "home", "metres", code=1).output
    assert "home/metres" in shell.run("stream-table", "delete", "home", "metres", code=1).stderr
    assert "the stream stays" in shell.run("stream-table", "delete", "home", "meters").output
    assert shell.json("stream-table", "list", "home") == []


def test_sql_of_a_stream_table_has_its_columns(shell: Shell) -> None:
    shell.run("stream-table", "create", "home", "usage", "--stream", "meters", "--schema", "meter string, wh long")
    result = shell.run("sql", "select meter, sum(wh) as wh from home.usage group by meter order by 1", "-o", "csv")
    assert result.stdout == "meter,wh\nm0,3\nm1,5\nm2,7\n"
    result = shell.run("sql", "select sum(wh) as wh from usage for slice 'early'", "--scope", "home", "-o", "csv")
    assert result.stdout == "wh\n3\n"
    assert "append_time" in shell.run("sql", "select * from home.usage", "-o", "csv").stdout
    shell.run("stream-table", "delete", "home", "usage")


def test_sql_of_latest_rows_and_changes(shell: Shell) -> None:
    shell.run("stream-table", "create", "home", "last", "--stream", "meters", "--schema", "meter string, wh long",
              "--key", "meter")  # fmt: skip
    shell.run("bookmark", "create", "home", "meters", "now")
    first = (("slice", "show", "home", "early"), "m0,0\nm1,1\nm2,2\n")
    end = shell.json(*first[0])[0]["end"]
    for name, rows in (
        ("latest('home.last')", "m0,3\nm1,4\nm2,5\n"),
        ("LATEST ( 'home.last' ) for system_time as of 'now' as last", "m0,3\nm1,4\nm2,5\n"),
        (f"latest('home.last') for system_time as of '{end}'", first[1]),
    ):
        assert shell.run("sql", f"select meter, wh from {name} order by 1", "-o", "csv").stdout == f"meter,wh\n{rows}"
    counted = "select _change_type as what, count(*) as n from {} group by all order by all"
    output = shell.run("sql", counted.format("changes('last')"), "--scope", "home", "-o", "csv").stdout
    assert output == "what,n\ninsert,3\nupdate_after,3\nupdate_before,3\n"
    later = f"changes('home.last') for system_time from '{end}' to 'now'"
    assert shell.run("sql", counted.format(later), "-o", "csv").stdout == "what,n\nupdate_after,3\nupdate_before,3\n"
    both = "select a.wh - b.wh as d from latest('home.last') a join home.meters b using (segment_id, \"offset\")"
    assert "wh" in shell.run("sql", both, code=2).output, "the stream lacks the column"
    for query, named in (
        ("from latest('last')", "--scope"),
        ("from latest('home.meters')", "'meters'"),
        ("from latest('home.last') for slice 'early'", "system_time as of"),
        ("from latest('home.last') for system_time from 'head' to 'tail'", "system_time as of"),
        ("from changes('home.last') for slice 'early'", "system_time from"),
    ):
        assert named in shell.run("sql", query, code=None).output
    assert shell.run("sql", "select 1 as latest, 'latest(''x'')' as changes", "-o", "csv").stdout == (
        "latest,changes\n1,latest('x')\n"
    )
    shell.run("stream-table", "delete", "home", "last")
    shell.run("stream-table", "create", "home", "my.last", "--stream", "meters", "--schema", "meter string, wh long",
              "--key", "meter")  # fmt: skip
    for query, more in (("from latest('home.\"my.last\"')", ()), ("from latest('\"my.last\"')", ("--scope", "home"))):
        assert len(shell.json("sql", query, *more)) == 3
    shell.run("stream-table", "delete", "home", "my.last")


def test_write_changes_continues_where_it_stopped(shell: Shell) -> None:
    shell.run("stream-table", "create", "home", "usage", "--stream", "meters", "--schema", "meter string, wh long",
              "--key", "meter")  # fmt: skip
    shell.run("stream", "create", "home", "usage-changes")
    write = ("stream-table", "write-changes", "home", "usage", "usage-changes", "--end")
    (early,) = shell.json("slice", "list", "home")
    assert "wrote 3 changes of home/usage to usage-changes" in shell.run(*write, early["end"]).output
    assert "wrote 6 changes" in shell.run(*write, "tail").output
    assert "wrote 0 changes" in shell.run(*write, "tail").output
    output = shell.run("sql", "select meter, wh from latest('home.usage-changes') order by 1", "-o", "csv").stdout
    assert output == "meter,wh\nm0,3\nm1,4\nm2,5\n"
    refused = shell.run(*write, "tail", "--on-unknown-commit", "perhaps", code=2).output
    assert ("on_unknown_commit" in refused, "wrote" in refused) == (True, False)
    assert "'metres'" in shell.run("stream-table", "write-changes", "home", "metres", "x", code=1).output
    for name in ("usage", "usage-changes"):
        shell.run("stream-table", "delete", "home", name)


def test_stream_delete_confirmation_names_its_tables(shell: Shell) -> None:
    shell.run("stream", "create", "home", "gone")
    shell.run("stream-table", "create", "home", "gone", "--schema", "wh long")
    shell.run("stream", "seal", "home", "gone", "--yes")
    question = shell.run("stream", "delete", "home", "gone", stdin=b"n\n", code=1).output
    assert "Delete stream home/gone and all its events, and its stream tables (gone)?" in question
    assert "deleted stream" in shell.run("stream", "delete", "home", "gone", stdin=b"y\n").output
    assert shell.json("stream-table", "list", "home") == []
