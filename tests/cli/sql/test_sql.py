"""`nadi sql` with a real server and DuckDB."""

from __future__ import annotations

import csv
import io
import json

import msgspec
import pytest

from nadi.cli.sql.query import StreamReference, rewrite_query
from nadi.client import StreamManager
from nadi.client.serializers import Struct
from nadi.errors import InvalidArgumentError
from tests.cli.test_streams import Shell


class Reading(msgspec.Struct):
    meter: str
    wh: int


class Odd(msgspec.Struct):
    offset: int
    note: str


@pytest.fixture(scope="module", autouse=True)
def streams(manager: StreamManager) -> None:
    """Stream home/meters has a schema; slice "early" and bookmark "noon" end after its first six events. Stream
    home/plain has JSON events without a schema."""
    manager.create_stream("home", "meters", 2)
    cuts = manager.cuts("home", "meters")
    with manager.create_writer("home", "meters", serializer=Struct(Reading)) as writer:
        for number in range(12):
            meter = ("kitchen", "hall", "oven")[number % 3]
            writer.write_event(Reading(meter, number), meter)
            if number == 5:
                writer.flush()
                manager.bookmarks("home").create("noon", cuts.tail())
                manager.slices("home").create("early", cuts.head(), cuts.tail())
    manager.create_stream("home", "plain")
    with manager.create_writer("home", "plain") as plain:
        for number in range(3):
            plain.write_event(b'{"meter": "m%d", "wh": %d}' % (number, number))
    manager.create_stream("home", "odd")
    with manager.create_writer("home", "odd", serializer=Struct(Odd)) as odd:
        odd.write_event(Odd(7, "its own"), "k")


SUMS = "select meter, sum(wh) as wh from {} group by meter order by meter"


def test_query_of_a_stream_with_a_schema(shell: Shell) -> None:
    assert shell.run("sql", SUMS.format("home.meters")).output.splitlines() == [
        "meter    wh",
        "hall     22",
        "kitchen  18",
        "oven     26",
    ]


@pytest.mark.parametrize(
    ("range_", "sums"),
    [
        ("for slice 'early'", [5, 3, 7]),
        ("for system_time as of 'noon'", [5, 3, 7]),
        ("FOR SYSTEM_TIME FROM 'noon' TO 'tail'", [17, 15, 19]),
        ("for slice 'early' m", [5, 3, 7]),
        ("for slice 'early' as m", [5, 3, 7]),
    ],
)
def test_query_of_a_range(shell: Shell, range_: str, sums: list[int]) -> None:
    rows = shell.json("sql", SUMS.format(f"home.meters {range_}"))
    assert [row["wh"] for row in rows] == sums


def test_query_joins_streams_and_common_table_expressions(shell: Shell) -> None:
    query = """
        with early as (select meter, sum(wh) as wh from meters for slice 'early' group by meter)  -- for slice 'none'
        select m.meter, sum(m.wh) - any_value(early.wh) as late, 'for slice ''x''' as words
        from meters m join early using (meter) group by m.meter order by m.meter
    """
    assert shell.json("sql", query, "--scope", "home") == [
        {"meter": meter, "late": late, "words": "for slice 'x'"}
        for meter, late in (("hall", 17), ("kitchen", 15), ("oven", 19))
    ]


def test_query_of_a_stream_without_schema_returns_bytes_or_given_fields(shell: Shell) -> None:
    columns = shell.json("sql", 'select * from home.plain order by "offset" limit 1')[0]
    assert list(columns) == ["event", "segment_id", "offset", "append_time"]
    text = "select decode(event) ->> 'meter' as meter from home.plain order by 1"
    assert [row["meter"] for row in shell.json("sql", text)] == ["m0", "m1", "m2"]
    schema = ("--schema", "home.plain=meter string, wh long")
    assert shell.json("sql", "select sum(wh) as wh from home.plain", *schema) == [{"wh": 3}]


def test_field_named_like_a_system_column_replaces_it(shell: Shell) -> None:
    assert shell.json("sql", 'select "offset", note, segment_id from home.odd') == [
        {"offset": 7, "note": "its own", "segment_id": 0}
    ]


def test_query_output_formats(shell: Shell) -> None:
    query = "select meter, wh, null as nothing, [wh] as many from home.meters where wh < 2 order by wh"
    rows = [
        {"meter": "kitchen", "wh": 0, "nothing": None, "many": [0]},
        {"meter": "hall", "wh": 1, "nothing": None, "many": [1]},
    ]
    assert json.loads(shell.run("sql", query, "-o", "json").output) == rows
    text = shell.run("sql", query, "-o", "csv").output
    assert list(csv.reader(io.StringIO(text))) == [
        ["meter", "wh", "nothing", "many"],
        ["kitchen", "0", "", "[0]"],
        ["hall", "1", "", "[1]"],
    ]
    assert shell.run("sql", "from home.meters where wh > 100").output == "no rows\n"
    assert shell.run("sql", "from home.meters where wh > 100", "-o", "json").output == "[]\n"
    twice = shell.run("sql", "select 1 as a, 2 as a").output
    assert twice.splitlines()[0].split() == ["a", "a"]


@pytest.mark.parametrize(
    ("value", "in_csv", "in_json"),
    [
        ("'nan'::double", "nan", "NaN"),
        ("'-inf'::float", "-inf", "-Infinity"),
        ("null::double", "", None),
        ("''", '""', ""),
        ("'null'", "null", "null"),
        ("[1.5::double, 'inf'::double]", '"[1.5,""Infinity""]"', [1.5, "Infinity"]),
        ("{'x': 'nan'::double}", '"{""x"":""NaN""}"', {"x": "NaN"}),
        ("map {'a': '-inf'::double}", '"{""a"":""-Infinity""}"', {"a": "-Infinity"}),
        ("12345678901234567890::hugeint", "12345678901234567890", 12345678901234567890),
        ("0.10::decimal(20, 2)", "0.10", "0.10"),
        ("'infinity'::timestamp", "infinity", "infinity"),
        ("'-infinity'::date", "-infinity", "-infinity"),
        ("timestamp '294246-01-01'", "294246-01-01 00:00:00", "294246-01-01 00:00:00"),
        ("timestamp_ns '2020-01-01 00:00:00.123456789'", *(["2020-01-01 00:00:00.123456789"] * 2)),
        ("interval 1 month", "1 month", "1 month"),
        ("timestamptz '2020-01-01 00:00:00+00'", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"),
        ("time_ns '12:00:00.123456789'", "12:00:00.123456789", "12:00:00.123456789"),
        ("timestamp_s 'infinity'", "infinity", "infinity"),
        ("[date '-infinity', null]", '"[""-infinity"",null]"', ["-infinity", None]),
        ("[[interval 1 month]]", '"[[""1 month""]]"', [["1 month"]]),
        ("[timestamp 'infinity']::timestamp[1]", '"[""infinity""]"', ["infinity"]),
        (
            "{'a b': timestamp_ns '2020-01-01 00:00:00.123456789', 'c': timestamptz '2020-01-01 00:00:00+00'}",
            '"{""a b"":""2020-01-01 00:00:00.123456789"",""c"":""2020-01-01T00:00:00Z""}"',
            {"a b": "2020-01-01 00:00:00.123456789", "c": "2020-01-01T00:00:00Z"},
        ),
        ("map {date 'infinity': 1}", '"{""infinity"":1}"', {"infinity": 1}),
        ("map {true: 1, false: null}", '"{""true"":1,""false"":null}"', {"true": 1, "false": None}),
        (
            "map {[1]: date 'infinity'}",
            '"{""key"":[[1]],""value"":[""infinity""]}"',
            {"key": [[1]], "value": ["infinity"]},
        ),
    ],
)
def test_sql_output_keeps_values_that_python_or_json_lacks(
    shell: Shell, value: str, in_csv: str, in_json: object
) -> None:
    query = f"select {value} as a, 1 as b;  -- the end"
    assert shell.run("sql", query, "-o", "csv").output == f"a,b\n{in_csv},1\n"
    assert json.loads(shell.run("sql", query, "-o", "json").output) == [{"a": in_json, "b": 1}]


def test_sql_output_keeps_columns_with_equal_names(shell: Shell) -> None:
    query = (
        "select a.wh, b.wh, 3 as wh_1, a.meter from meters a join meters b using (meter) where a.wh = 0 and b.wh = 3"
    )
    (row,) = shell.json("sql", query, "--scope", "home")
    assert row == {"wh": 0, "wh_2": 3, "wh_1": 3, "meter": "kitchen"}
    assert shell.run("sql", query, "--scope", "home", "-o", "csv").output.splitlines()[0] == "wh,wh,wh_1,meter"


def test_sql_output_keeps_the_order_of_a_query_with_times(shell: Shell) -> None:
    rows = shell.json("sql", "select i, date '2020-01-01' + i::int as day from range(25000) r(i) order by i desc")
    assert [row["i"] for row in rows] == list(range(24999, -1, -1))
    assert rows[-1]["day"] == "2020-01-01"


@pytest.mark.parametrize("query", [" ", "\n", "\n-- nothing", "/* nothing */ ;", ";"])
def test_sql_without_a_query_fails(shell: Shell, query: str) -> None:
    assert "expected one query, but got 0" in shell.run("sql", query, code=2).stderr


def test_sql_table_shows_only_the_first_rows(shell: Shell) -> None:
    ran = shell.run("sql", "from range(1001)")
    assert len(ran.stdout.splitlines()) == 1_001
    assert "the first 1,000 rows" in ran.stderr
    assert len(shell.json("sql", "from range(25000)")) == 25_000


@pytest.mark.parametrize(
    ("words", "wording"),
    [
        (["selec 1"], "invalid query: syntax error"),
        (["insert into home.meters values (1)"], "only select, from and with are supported"),
        (["select 1; select 2"], "expected one query, but got 2"),
        (["from meters"], "add --scope"),
        (["from home.metres"], "home/metres"),
        (["from home.meters for slice 'erly'"], "'erly'"),
        (["from home.plain for slice 'early'"], "slice early belongs to stream meters, not to plain"),
        (["from home.meters for slice early"], "expected a name in single quotes"),
        (["from home.meters for system_time as 'noon'"], "expected a name in single quotes"),
        (["from home.meters for system_time from 'noon'"], "expected a name in single quotes"),
        (["from (from home.meters) for slice 'early'"], "no stream before"),
        (["select wh + meter from home.meters"], "Error"),
        (["from home.meters", "--schema", "home.metres=wh long"], "the query doesn't name this stream"),
        (["from home.plain", "--schema", "home.plain"], "doesn't name fields"),
        (["from home.plain", "--schema", "home.plain=wh lnog"], "lnog"),
    ],
)
def test_invalid_query_prints_an_error(shell: Shell, words: list[str], wording: str) -> None:
    ran = shell.run("sql", *words, code=None)
    assert wording in ran.stderr
    assert "Traceback" not in ran.stderr


def test_rewrite_query_replaces_only_ranges_of_streams() -> None:
    reference = "\"sc-1\".\"a\"\"b\" /* for slice 'y' */ for slice 'it''s'"
    query = f"select 'ä€ for slice ''x''', \"for\" from {reference} z, t"
    rewritten, references = rewrite_query(query)
    assert rewritten == query.replace(reference, '"sc-1"."a""b for slice it\'s"')
    assert references == [StreamReference("sc-1", 'a"b', "it's"), StreamReference("", "t")]
    with pytest.raises(InvalidArgumentError):
        rewrite_query("for slice 'x'")
