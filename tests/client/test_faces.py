"""The two faces of the client are one: what one can do the other can, by the same names and arguments, and says so."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

import pytest

import nadi.client as blocking
from nadi.client import aio
from nadi.client.blocking.face import Face, same
from nadi.client.control.closing import Closing
from nadi.client.control.loop_thread import LoopThread
from nadi.client.serializers import Json
from nadi.errors import ClosedError

# What the asyncio face alone has: files are another interface; a plain call waits for room by itself where threads are.
OTHER_FORM = {"ByteStreamReader", "ByteStreamWriter"}
WAIT_FOR_ROOM = {"ready", "write", "write_many"}
PLAIN = {"name", "scope", "stream", "segment", "segment_id"}  # of themselves
RECORDS = {"revisioned_stream"}  # what shared state is made of
FILES = {"create_byte_writer"}  # a file's methods can't take a time-out, so it is given when one is opened


def public(face: ModuleType) -> list[str]:
    return [n for n, o in vars(face).items() if n[0] != "_" and n != "annotations" and not inspect.ismodule(o)]


def shared_classes() -> list[str]:
    names = set(public(blocking)) & set(public(aio))
    return sorted(n for n in names if getattr(blocking, n) is not getattr(aio, n) and inspect.isclass(getattr(aio, n)))


def methods(kind: type) -> Iterator[tuple[str, object]]:
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


@pytest.mark.parametrize("name", [n for n in shared_classes() if n not in OTHER_FORM])
def test_both_faces_can_do_the_same(name: str) -> None:
    """And nothing else: what the parts of the client ask of each other is no method of a class that users have."""
    here, there = dict(methods(getattr(blocking, name))), dict(methods(getattr(aio, name)))
    assert there.keys() - PLAIN - WAIT_FOR_ROOM - RECORDS == here.keys() - PLAIN
    for method in here.keys() & there.keys() - FILES:
        one, other = here[method], there[method]
        assert inspect.getdoc(one) == inspect.getdoc(other), method
        if inspect.isfunction(one) and inspect.isfunction(other):
            assert arguments(one) == arguments(other), method


@pytest.mark.parametrize("name", [n for n in shared_classes() if n not in OTHER_FORM])
def test_both_faces_are_described_alike(name: str) -> None:
    assert inspect.getdoc(getattr(blocking, name)) == inspect.getdoc(getattr(aio, name))


def test_what_is_waited_for_shows_what_is_given() -> None:
    def given(method: object) -> str:
        returned = inspect.signature(method).return_annotation  # type: ignore[arg-type]
        return returned if isinstance(returned, str) else repr(returned)

    assert given(blocking.StreamManager.stream_info) == "StreamInfo"
    assert given(blocking.StreamManager.create_writer) == "EventWriter | ValueWriter[T]"
    assert given(blocking.StreamManager.schemas) == "Schemas"
    assert given(blocking.KeyValueTable.pages) == "Iterator[list[TableEntry]]"
    assert given(blocking.ReaderGroup.notifications) == "Iterator[GroupSize]"
    assert given(blocking.StreamManager.read_segment_range) == "Iterator[EventBlock]"
    assert given(blocking.SharedCounter.add) == "int"
    coroutines = [
        f"{name}.{method}"
        for name in shared_classes()
        for method, function in methods(getattr(blocking, name))
        if inspect.iscoroutinefunction(function) or given_async(function)
    ]
    assert not coroutines


def test_no_part_of_the_client_is_an_attribute_of_what_users_have(manager: blocking.StreamManager) -> None:
    for stream in ("st", "map", "index"):
        manager.create_stream("sc", stream)
    manager.reader_group_manager("sc").create_reader_group("g", "st")
    group = manager.reader_group_manager("sc").get_reader_group("g")
    transactions = manager.create_transaction_writer("sc", "st")
    typed = manager.create_writer("sc", "st", serializer=Json(int))
    faces: list[Face[object]] = [manager, manager.cuts("sc", "st"), manager.table("sc", "t"), group]
    faces += [manager.create_writer("sc", "st"), transactions, transactions.begin_txn(), typed]
    faces += [manager.create_reader("sc", "st"), group.create_reader("r"), manager.shared_map("sc", "map")]
    faces += [manager.create_byte_writer("sc", "map"), manager.create_byte_reader("sc", "map")]
    faces += [manager.create_index_writer("sc", "index", ["t"]), manager.create_index_reader("sc", "index")]
    for face in faces:
        for thing in (face, face._core):
            own = {name for name in vars(thing) if not name.startswith("_")}
            assert own <= PLAIN | dict(methods(type(thing))).keys(), thing


@pytest.mark.parametrize("name", [n for n in public(aio) if hasattr(getattr(aio, n), "close")])
def test_aio_class_with_close_is_an_async_context_manager(name: str) -> None:
    """By the one base that calls its `close`, so that a class which is added has `async with` too."""
    kind = getattr(aio, name)
    assert issubclass(kind, Closing)
    assert hasattr(kind, "__aexit__")


def test_aio_objects_async_with_ends_are_closed(manager: blocking.StreamManager, uri: str) -> None:
    async def open_and_close() -> None:
        async with aio.StreamManager(uri) as client:
            for stream in ("with", "bytes", "records"):
                await client.create_stream("sc", stream)
            async with await client.create_writer("sc", "with") as writer:
                await writer.write(b"12 Wh", "kitchen")
            with pytest.raises(ClosedError):
                writer.write_event(b"14 Wh")
            async with await client.create_writer("sc", "with", serializer=Json(int)) as typed:
                await typed.write(7, "kitchen")
            async with await client.create_reader("sc", "with") as reader:
                _, block = await reader.next_block(10) or (0, None)
                assert block is not None
                assert [bytes(event) for event in block.events()] == [b"12 Wh", b"7"]
            with pytest.raises(ClosedError):
                await reader.next_block(10)
            async with await client.create_reader("sc", "with", serializer=Json(object)) as values:
                assert not values.skipped
            with pytest.raises(ClosedError):
                await values.next_events(10)
            async with (
                await client.create_transaction_writer("sc", "with") as transactions,
                await transactions.begin_txn() as txn,
            ):
                await txn.write_many([b"13 Wh"])
            with pytest.raises(ClosedError):
                await transactions.begin_txn()
            groups = client.reader_group_manager("sc")
            await groups.create_reader_group("with", "with")
            group = await groups.get_reader_group("with")
            with suppress(ZeroDivisionError):
                async with await group.create_reader("r") as member:
                    failed = await member.read_next_event(10)
                    raise ZeroDivisionError
            async with await group.create_reader("r") as member:
                again = await member.read_next_event(10)
            assert [getattr(read, "event", None) for read in (failed, again)] == [b"12 Wh"] * 2
            async with await client.create_byte_writer("sc", "bytes") as out:
                await out.write(b"abc")
            async with await client.create_byte_reader("sc", "bytes") as into:
                assert await into.read(3) == b"abc"
            async with await client.create_index_writer("sc", "records", ["t"]) as records:
                await records.append({"t": 1}, b"record")
            async with await client.create_index_reader("sc", "records") as found:
                assert [record.data async for record in found.read()] == [b"record"]

    asyncio.run(open_and_close())


def test_a_call_in_the_callers_thread_is_the_asyncio_objects_own() -> None:
    class Core:
        def after(self, number: int) -> int:
            return number + 1

    class Own(Face[Core]):
        after = same(Core.after)

    core, thread = Core(), LoopThread("test")
    try:
        face = Own(thread, core)
        assert Own.after(face, 1) == 2
        assert face.after == core.after
        assert face.after(number=2) == 3
    finally:
        thread.close(asyncio.sleep(0))


def given_async(function: object) -> bool:
    return inspect.isfunction(function) and "Async" in str(inspect.signature(function).return_annotation)


def arguments(function: object) -> list[tuple[str, object, object]]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(p.name, p.kind, p.default) for p in parameters]


# These wait for more than the server's answer: readers that pass a checkpoint, what is merged or scaled, data.
WAIT_FOR_OTHERS = {
    "abort",
    "commit",
    "commit_together",
    "create_byte_reader",
    "create_index_reader",
    "generate_stream_cuts",
    "initiate_checkpoint",
    "scale_stream",
    "stream_cuts_on_condition",
}


@pytest.mark.parametrize("name", shared_classes())
def test_a_time_that_is_not_given_is_the_clients(name: str) -> None:
    """One rule: no call has a time of its own for a server that doesn't answer."""
    own = {
        method
        for method, function in methods(getattr(aio, name))
        if inspect.isfunction(function)
        for parameter, _, default in arguments(function)
        if parameter == "timeout" and default not in (None, inspect.Parameter.empty)
    }
    assert own - WAIT_FOR_OTHERS <= {"close"}  # a reader's, which leaves its group


@pytest.mark.parametrize("face", [blocking, aio])
def test_whatever_a_user_calls_says_what_it_does(face: ModuleType) -> None:
    silent = []
    for name in public(face):
        kind = getattr(face, name)
        if inspect.isclass(kind):
            own = [m for n, m in methods(kind) if n not in PLAIN]
            silent += [f"{name}: {method}" for method in own if not inspect.getdoc(method)]
            silent += [] if kind.__doc__ else [name]
    assert not silent
