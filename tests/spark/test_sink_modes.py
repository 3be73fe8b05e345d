"""Batch writes: all or nothing, once per application version, and their effect on a stream with events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import nadi
from nadi.client.manager.streams import stores_of
from nadi.client.scan.connection import ConnectionSettings
from nadi.errors import InvalidArgumentError, NotEmptyError, TransactionFailedError
from nadi.spark.connections import client_of
from nadi.spark.intents import Intent, SinkRecord, application
from nadi.spark.ledger import TABLE
from nadi.spark.options.parsed import WriteOptions
from nadi.spark.options.table import SparkFormat
from nadi.spark.sink import BatchWriter, TaskCommit
from nadi.spark.source_requests import SourceRequest

from .queries import served

SCHEMA = StructType([StructField("event", BinaryType()), StructField("routing_key", StringType())])


class Home:
    def __init__(self, uri: str, manager: nadi.StreamManager) -> None:
        self.uri, self.manager = uri, manager

    def stream(self, name: str, segments: int = 2) -> str:
        self.manager.create_stream("home", name, segments)
        return name

    def given(self, stream: str, **options: Any) -> dict[str, str]:
        return {"controller": self.uri, "scope": "home", "stream": stream} | {k: str(v) for k, v in options.items()}

    def writer(self, stream: str, overwrite: Any = False, **options: Any) -> Any:
        return SourceRequest(self.given(stream, **options), SparkFormat.NADI).writer(SCHEMA, overwrite)

    def write(self, stream: str, *tasks: str, overwrite: Any = False, **options: Any) -> None:
        """Write like `df.write`: each text has a task's rows."""
        writer = self.writer(stream, overwrite=overwrite, **options)
        writer.commit([writer.write(iter([rows(task)])) for task in tasks])

    def written(self, stream: str, count: int) -> str:
        """Return the events, once there are that many."""
        found = self.manager.read_events("home", stream)
        return "".join(sorted(event.data.decode() for event in islice(found, count)))

    def events(self, stream: str) -> str:
        end = self.manager.stream_info("home", stream).tail
        found = self.manager.read_events("home", stream, end=end)
        return "".join(sorted(event.data.decode() for event in found))


def rows(text: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"event": [one.encode() for one in text], "routing_key": list(text)})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with served(tmp_path_factory.mktemp("server")) as home:
        yield Home(home.uri, home.manager)


def test_write_is_all_or_nothing(home: Home) -> None:
    stream = home.stream("whole")
    writer = home.writer(stream)
    messages = [writer.write(iter([rows(task)])) for task in ("abc", "def", "")]
    assert home.events(stream) == ""
    with home.manager.create_transaction_writer("home", stream) as transactions:
        transactions.get_txn(messages[1].transaction).abort(wait=True)
    with pytest.raises(TransactionFailedError, match="home/whole"):
        writer.commit(messages)
    assert home.events(stream) == ""
    writer.abort(messages)
    home.write(stream, "ghi", "jkl", "")
    assert home.events(stream) == "ghijkl"


def test_more_tasks_than_one_commit_takes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.spark.intents.TXN_BATCH_MAX", 2)
    stream = home.stream("many")
    home.write(stream, *"abcde")
    assert home.events(stream) == "abcde"


def test_application_version_is_written_once(home: Home) -> None:
    stream = home.stream("versions")
    once = {"txnAppId": "daily sums"}
    home.write(stream, "ab", "c", **once, txnVersion=3)
    home.write(stream, "ab", "c", **once, txnVersion=3)
    home.write(stream, "x", **once, txnVersion=2)
    home.write(stream, "d", **once, txnVersion=9)
    home.write(stream, "e", txnAppId="another", txnVersion=0)
    assert home.events(stream) == "abcde"


def test_interrupted_application_version_is_completed(home: Home) -> None:
    """The driver died after writing the record, before committing anything."""
    stream = home.stream("cut-off")
    once = {"txnAppId": "job", "txnVersion": 1}
    home.write(stream, "z")
    writer = home.writer(stream, overwrite=True, truncate="true", **once)
    messages = [writer.write(iter([rows("ab")]))]
    options = WriteOptions.from_spark(home.given(stream, truncate="true", **once))
    client = client_of(ConnectionSettings(home.uri))
    record = SinkRecord(client.manager, options, application("job"), skips=True)

    async def only_record() -> None:
        intent = Intent(1, [messages[0].transaction], False, former=writer._plan.former.as_text())
        await record._record.put(lambda _: intent)

    client.run(only_record())
    home.write(stream, "ab", overwrite=True, truncate="true", **once)
    assert home.events(stream) == "ab", "once, without the events before the first attempt"
    last = client.run(record.last())
    assert last is not None
    assert last.done
    assert last.cut == home.manager.stream_info("home", stream).tail.as_text()
    home.write(stream, "ab", overwrite=True, truncate="true", **once)
    assert home.events(stream) == "ab"


def test_application_version_is_written_again_into_recreated_stream(home: Home) -> None:
    stream, once = "recreated", {"txnAppId": "job", "txnVersion": 7}
    for waits in ("true", "false"):  # with false, the batch's position is not recorded
        home.stream(stream)
        for _ in range(2):
            home.write(stream, "ab", **once, read_after_write_consistency=waits)
            home.write(stream, "x", txnAppId="job", txnVersion=6)
        assert home.written(stream, 2) == "ab"
        home.manager.seal_stream("home", stream)
        home.manager.delete_stream("home", stream)


def test_version_is_skipped_after_further_truncation(home: Home) -> None:
    stream, once = home.stream("dropped", 1), {"txnAppId": "job", "txnVersion": 1}
    overwrite: dict[str, Any] = {"overwrite": True, "truncate": "true"}
    home.write(stream, "ab", **overwrite, **once)
    home.write(stream, "cd", **overwrite)
    home.write(stream, "ab", **overwrite, **once)
    assert home.events(stream) == "cd"
    writer = home.writer(stream, **overwrite)
    messages = [writer.write(iter([rows("ef")]))]
    home.manager.scale_stream("home", stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    home.write(stream, "gh", **overwrite)
    writer.commit(messages)
    assert home.events(stream) == "efgh", "events before both are gone"


def test_save_modes(home: Home) -> None:
    stream = home.stream("modes")
    home.write(stream, "a", save_mode="errorifexists")
    with pytest.raises(NotEmptyError, match="home/modes"):
        home.write(stream, "b", save_mode="errorifexists")
    home.write(stream, "b", save_mode="ignore")
    assert home.events(stream) == "a"
    home.write(stream, "b", save_mode="append")
    assert home.events(stream) == "ab"
    home.write("made", "c", save_mode="ignore", allow_create_stream="true")
    assert home.events("made") == "c"
    home.manager.truncate_stream(home.manager.stream_info("home", stream).tail)
    home.write(stream, "d", save_mode="errorIfExists")
    assert home.events(stream) == "d"


def test_overwrite_truncates_after_the_new_events_are_written(home: Home) -> None:
    stream = home.stream("over")
    home.write(stream, "abc")
    writer = home.writer(stream, overwrite=True, truncate="true")
    messages = [writer.write(iter([rows("de")]))]
    home.write(stream, "f")  # meanwhile, and so it stays
    writer.commit(messages)
    assert home.events(stream) == "def"
    with pytest.raises(InvalidArgumentError):
        home.writer(stream, overwrite=True)
    with pytest.raises(InvalidArgumentError, match="truncate"):
        home.writer(stream, truncate="true")
    with pytest.raises(InvalidArgumentError, match="complete"):
        SourceRequest(home.given(stream), SparkFormat.NADI).stream_writer(SCHEMA, True)


def test_lost_application_version_is_written_again(home: Home) -> None:
    stream = home.stream("lost")
    once = {"txnAppId": "job", "txnVersion": "0"}
    writer = home.writer(stream, **once)
    written = writer.write(iter([rows("a")]))
    intent = f'{{"batch":0,"transactions":["{written.transaction}"],"done":false}}'
    home.manager.table("home", TABLE).create()
    home.manager.table("home", TABLE).put(f"sink/application job/{stream}".encode(), intent.encode())
    with home.manager.create_transaction_writer("home", stream) as transactions:
        transactions.get_txn(written.transaction).abort(wait=True)  # as if it had timed out
    with pytest.raises(TransactionFailedError, match="home/lost"):
        writer.commit([written])
    for _ in range(2):
        home.write(stream, "a", **once)
    assert home.events(stream) == "a"


def test_recorded_cut_is_after_the_batch(home: Home) -> None:
    stream = home.stream("kept")
    client = client_of(ConnectionSettings(home.uri))
    options = WriteOptions.from_spark(home.given(stream))
    writer: BatchWriter = home.writer(stream)
    messages = [writer.write(iter([rows(task)])) for task in ("ab", "cd")]
    ids = [message.transaction for message in messages if isinstance(message, TaskCommit) and message.transaction]
    record = SinkRecord(client.manager, options, "query")
    client.run(record.commit(0, ids))
    home.write(stream, "later")
    last = client.run(record.last())
    assert last is not None
    assert last.cut is not None
    end = nadi.StreamCut.from_text(last.cut)
    assert sorted(event.data for event in home.manager.read_events("home", stream, end=end)) == [b"a", b"b", b"c", b"d"]
    assert client.run(stores_of(client.manager).controller.find_commit("home", stream, ids)) == (True, end)


# --- as Spark has it ----------------------------------------------------------------------------------


@pytest.mark.spark
def test_modes_and_views_in_spark(spark: Any, home: Home) -> None:
    stream = home.stream("sql", 1)
    letters = spark.createDataFrame([("a",), ("b",)], "event string")
    write = letters.write.format("nadi").options(**home.given(stream))
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(Exception, match=r'cannot be written in the ".*" mode'):  # Spark's own word, for any source
            write.mode(mode).save()
    write.option("save_mode", "errorifexists").mode("append").save()
    with pytest.raises(Exception, match="home/"):
        write.option("save_mode", "errorifexists").mode("append").save()
    options = ", ".join(f"{name} '{value}'" for name, value in home.given(stream).items())
    spark.sql(f"CREATE TEMPORARY VIEW letters USING nadi OPTIONS ({options})")
    spark.sql("INSERT INTO letters VALUES (X'63', 'scope', 'stream', 0, 0)")
    found = [row.text for row in spark.sql("SELECT CAST(event AS string) AS text FROM letters").collect()]
    assert sorted(found) == ["a", "b", "c"]
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING nadi OPTIONS ({options})")
    named = ", ".join(f"{name} = '{value}'" for name, value in home.given(stream).items())
    spark.sql("CREATE TABLE bare (event binary, scope string, stream string, segment_id long, offset long) USING nadi")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM bare").collect()
        assert spark.sql(f"SELECT * FROM bare WITH ({named})").count() == 3
    finally:
        spark.sql("DROP TABLE bare")
    writes = home.stream("batches", 1)

    def write_batch(rows: Any, number: int) -> None:
        for _ in range(2):  # as if the driver had died after the write
            once = {"txnAppId": "letters", "txnVersion": number}
            rows.select("event").write.format("nadi").options(**home.given(writes), **once).mode("append").save()

    rows = spark.readStream.format("nadi").options(**home.given(stream)).load()
    query = rows.writeStream.foreachBatch(write_batch).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert home.events(writes) == "abc"
