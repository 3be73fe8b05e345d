"""Streams: which of them no longer reach everything in their segments, and what completes them.

A stream without a record gets one; so does one whose history is lost, or is an older one that lacks segments with
events in them. What the records still say is kept: a complete history unchanged, one that ends too early as the
beginning. Otherwise the history is made up (`chain`), and the stream continues in new segments after that. A single
segment after all others stays in use: streams used as one sequence of bytes, or as shared state, have no other.

Why not several: nothing remains of an epoch's segments that never held anything, so it isn't certain how the keys were
spread, and a key's next event might be read before its last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from nadi.controller.anew.chain import chain, following, head_of, newest_segments
from nadi.controller.anew.found import Found, Segments
from nadi.controller.state.histories import first_change
from nadi.controller.state.history import History, first_epoch
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Config, EpochChange, Stream, StreamState, Transaction, TxnState
from nadi.limits import STREAM_MAX_SEGMENTS
from nadi.naming import MARK_PREFIX, segment_epoch, segment_id, segment_number, transaction_segment_name

_CHANGES = {"scale", "roll"}  # workflows that make segments before any epoch has them
_MAKES = {"create", "create_group"}


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a stream. work: kinds of its unfinished workflows; last_number: of a deleted stream of its name;
    transactions: its unfinished ones, by id."""

    name: StreamName
    stream: Stream | None
    history: History | None
    segments: Segments
    work: Collection[str] = ()
    last_number: int = -1
    transactions: Mapping[str, Transaction] = field(default_factory=dict)


@dataclass(slots=True)
class StreamAnew:
    """A stream's record and history as they should be.

    create, seal: its segments to create and to seal. merge: segments of transactions to merge into created ones.
    committed, aborted (with their segments): transactions that end so, since their epochs are no longer known.
    is_changed: whether there is more to do than creating what is missing. is_made_up: whether any of its epochs is
    made up. told: what a person should know.
    """

    name: StreamName
    stream: Stream
    history: History
    create: list[int] = field(default_factory=list)
    seal: list[int] = field(default_factory=list)
    merge: dict[int, list[str]] = field(default_factory=dict)
    committed: list[str] = field(default_factory=list)
    aborted: dict[str, list[str]] = field(default_factory=dict)
    is_changed: bool = True
    is_made_up: bool = False
    told: str = ""


def made_whole(remains: Remains, now_ms: int) -> StreamAnew | None:
    """What completes the stream; None if it is complete, or if unfinished work will complete it."""
    stream = remains.stream
    if stream is None and _MAKES.intersection(remains.work):
        return None
    found = {i: one for i, one in remains.segments.by_id.items() if segment_number(i) > remains.last_number}
    if stream is None and not found:
        return None
    history = _usable(remains)
    if history is None:
        return _made_up(remains, remains.history, found, now_ms)
    lacks = [i for i, one in found.items() if i not in history.segments and (one.has_any or one.is_sealed)]
    if lacks and not _CHANGES.intersection(remains.work):
        return _made_up(remains, history, found, now_ms)
    return _with_record(remains, history, found, now_ms) if stream is None else _with_segments(remains, history, found)


def mark_stream(name: StreamName, first_number: int, now_ms: int) -> StreamAnew:
    """An empty mark stream, for a stream that has lost its own."""
    history = History([first_epoch(1, now_ms, first_number)])
    segments = history.epoch(0)
    stream = Stream(Config(), now_ms, StreamState.ACTIVE, 0, 0, now_ms, segments, {}, 0, internal=True)
    return StreamAnew(name, stream, history, create=[segments[0].id])


def _usable(remains: Remains) -> History | None:
    """The recorded history, if it matches the stream's record."""
    stream, history = remains.stream, remains.history
    if stream is None:
        return history
    if history is None:
        return History([first_change(stream)]) if stream.epoch == 0 else None
    if history.newest < stream.epoch or history.epoch(stream.epoch) != stream.segments:
        return None
    return history


def _with_segments(remains: Remains, history: History, found: Mapping[int, Found]) -> StreamAnew | None:
    """A stream some of whose active segments the store has lost, so they can't be written to; or whose other segments
    are no longer sealed, so readers would wait for more forever."""
    stream = remains.stream
    assert stream is not None
    if "delete" in remains.work:
        return None
    made = StreamAnew(remains.name, stream, history, is_changed=False)
    if stream.state is StreamState.ACTIVE and not _CHANGES.intersection(remains.work):
        made.create = [segment.id for segment in stream.segments if segment.id not in found]
    made.seal = _to_seal(made, found)
    parts = [f"{_segments(len(made.create))} that it had: rebuilt, empty"] if made.create else []
    parts += [f"{_segments(len(made.seal))} that it had sealed: sealed again"] if made.seal else []
    return _told(made, "; ".join(parts)) if parts else None


def _with_record(remains: Remains, history: History, found: Mapping[int, Found], now_ms: int) -> StreamAnew:
    """A record for a stream whose history says everything."""
    live = history.epoch(history.newest)
    made = StreamAnew(remains.name, _stream(found, len(live), now_ms), history)
    made.create = [segment.id for segment in live if segment.id not in found]
    made.stream = _as_in(made, found, StreamState.SEALED if _is_sealed(remains, found) else StreamState.ACTIVE)
    made.seal = _to_seal(made, found)
    return _told(made, f"found again with its {_segments(len(found))}; {_LOST}{_sealed(made.stream)}")


def _made_up(remains: Remains, former: History | None, found: Mapping[int, Found], now_ms: int) -> StreamAnew:
    held = remains.stream
    before = former.changes if former is not None and _is_beginning(former, found) else []
    known = History(before).segments
    ids = {*found, *((segment.id for segment in held.segments) if held is not None else ())}
    if not before:
        ids |= _of_first_epoch(remains, ids)
    rest = ids - known.keys()
    numbers = [segment_number(segment) for segment in (*ids, *known)]
    empty = {i for i, one in found.items() if not one.has_any}
    created_ms = {i: one.created_ms for i, one in found.items()}
    wanted = len(held.segments) if held is not None else _parallelism(rest, empty)

    newest = max(map(segment_epoch, rest), default=-1)
    last = {i for i in rest if segment_epoch(i) == newest}
    others = [n for i, n in zip((*ids, *known), numbers, strict=True) if i not in last]
    if others and not any(found[i].has_any for i in last if i in found):
        if held is None:
            wanted = _parallelism(rest - last, empty)
        if last <= set(_behind(max(others), newest, wanted, barrier=True)):
            rest -= last  # what a try that was interrupted had made already
            numbers = others

    changes = chain(before, rest, created_ms=created_ms, empty=empty)
    ended = {text: one for text, one in remains.transactions.items() if one.epoch > max(0, following(before) - 1)}
    committed = sorted(
        (text for text, one in ended.items() if one.state is TxnState.COMMITTING),
        key=lambda text: ended[text].commit_number,
    )
    merge = _merges(remains, committed, following(changes))
    changes = chain(changes, merge, created_ms=dict.fromkeys(merge, now_ms))
    is_sealed = _is_sealed(remains, found)
    live = newest_segments(changes)
    if not is_sealed and (len(live) > 1 or live[0] in merge or (live[0] in found and found[live[0]].is_sealed)):
        fresh = _behind(max(numbers), following(changes), wanted)
        changes = chain(changes, fresh, created_ms=dict.fromkeys(fresh, now_ms))
    began_ms = former.older_began_ms if former is not None and before else {}
    history = History(changes, {i: one.length for i, one in found.items()}, began_ms)
    last_epoch = history.epoch(history.newest)
    made = StreamAnew(remains.name, held or _stream(found, len(last_epoch), now_ms), history)
    there = {*rest, *merge, *_barriers(changes[len(before) :]), *(s.id for s in last_epoch)}
    if before:
        there |= set(newest_segments(before))
    made.create = sorted(there - found.keys())
    made.merge, made.committed = merge, committed
    made.aborted = {text: _segments_of(remains, text) for text in sorted(ended.keys() - set(committed))}
    made.is_made_up = True
    made.stream = _as_in(made, found, StreamState.SEALED if is_sealed else StreamState.ACTIVE)
    made.seal = _to_seal(made, found)
    return _told(made, _in_words(remains, made, found, before))


def _merges(remains: Remains, transactions: Sequence[str], epoch: int) -> dict[int, list[str]]:
    """Where what was to be committed goes: a segment for each number, as it must be, in an epoch of their own."""
    merges: dict[int, list[str]] = {}
    for text in transactions:
        for parent, source in zip(_parents(remains, text), _segments_of(remains, text), strict=True):
            merges.setdefault(segment_id(segment_number(parent), epoch), []).append(source)
    return merges


def _parents(remains: Remains, transaction: str) -> list[int]:
    return sorted(remains.segments.transactions.get(transaction, ()))


def _segments_of(remains: Remains, transaction: str) -> list[str]:
    parents = map(remains.name.segment, _parents(remains, transaction))
    return [transaction_segment_name(parent, int(transaction, 16)) for parent in parents]


def _is_beginning(history: History, found: Mapping[int, Found]) -> bool:
    """Whether the stream can continue from it: it has all segments of its epochs."""
    return all(segment in history.segments for segment in found if segment_epoch(segment) <= history.newest)


def _of_first_epoch(remains: Remains, ids: Collection[int]) -> set[int]:
    """The segments that the first epoch must have had: they are numbered one by one, and its transactions name all."""
    begun = [parent for parents in remains.segments.transactions.values() for parent in parents]
    numbers = [segment_number(i) for i in (*ids, *begun) if segment_epoch(i) == 0]
    if not numbers:
        return set()
    first = remains.last_number + 1 if remains.last_number >= 0 else min(numbers)
    if max(numbers) - first >= STREAM_MAX_SEGMENTS:
        return set()  # one of them is none that a stream is created with
    return {segment_id(number) for number in range(first, max(numbers) + 1)}


def _parallelism(ids: Collection[int], empty: Collection[int]) -> int:
    """As many segments as an epoch was given at most: how many took events at a time isn't known."""
    counts: dict[int, int] = {}
    for segment in ids:
        epoch = segment_epoch(segment)
        counts[epoch] = counts.get(epoch, 0) + (segment not in empty or epoch == 0)
    return min(max(counts.values(), default=1) or 1, STREAM_MAX_SEGMENTS)


def _behind(last_number: int, epoch: int, count: int, *, barrier: bool = False) -> list[int]:
    """The segments of an epoch after all others; the number before theirs is left for its barrier."""
    return [segment_id(last_number + 2 + i, epoch) for i in range(-int(barrier), count)]


def _is_sealed(remains: Remains, found: Mapping[int, Found]) -> bool:
    """All segments sealed is what sealing a stream does; while it is scaled some take events at any time."""
    if remains.stream is not None:
        return remains.stream.state is StreamState.SEALED
    return "delete" in remains.work or (bool(found) and all(one.is_sealed for one in found.values()))


def _barriers(changes: Sequence[EpochChange]) -> set[int]:
    return {change.barrier for change in changes if change.barrier >= 0}


def _to_seal(made: StreamAnew, found: Mapping[int, Found]) -> list[int]:
    there = {*found, *made.create}
    done = there if made.stream.state is StreamState.SEALED else there & made.history.sealed_in.keys()
    return sorted(i for i in done if i not in found or not found[i].is_sealed)


def _stream(found: Mapping[int, Found], segments: int, now_ms: int) -> Stream:
    """A record in which everything unknown is as for a newly created stream."""
    created_ms = min((one.created_ms for one in found.values() if one.created_ms), default=now_ms)
    return Stream(Config(min_segments=segments), created_ms, StreamState.ACTIVE, 0, 0, created_ms, ())


def _as_in(made: StreamAnew, found: Mapping[int, Found], state: StreamState) -> Stream:
    """The record that matches the new history."""
    newest = made.history.changes[-1]
    starts = dict.fromkeys(made.create, 0) | {i: one.start_offset for i, one in found.items()}
    return replace(
        made.stream,
        state=state,
        epoch=newest.epoch,
        reference=newest.reference,
        epoch_created_ms=newest.created_ms,
        segments=made.history.epoch(newest.epoch),
        head=dict(head_of(made.history, starts)),
        internal=made.name.stream.startswith(MARK_PREFIX),
    )


# --- in words ----------------------------------------------------------------------------------------

_LOST = "its policies and tags, and which groups had subscribed to it, are lost"


def _in_words(
    remains: Remains,
    made: StreamAnew,
    found: Mapping[int, Found],
    before: Sequence[EpochChange],
) -> str:
    what = "rebuilt" if remains.stream is None else "its history was rebuilt"
    parts = [f"{what} from its {_segments(len(found))}"]
    if remains.stream is None:
        parts.append(_LOST)
    epochs = {segment_epoch(segment) for segment in found}
    if len(epochs) > 1 and len(before) < max(epochs) + 1:
        parts.append(
            "which segment followed which is lost: each epoch is read wholly before the next, stream cuts within "
            "several don't hold, and a reader group that was within several may get events twice: reset it"
        )
    if made.stream.head:
        parts.append("it begins with what is there")
    if made.stream.segments[0].id in made.create:
        parts.append("it goes on in new segments")
    if ended := [*made.committed, *made.aborted]:
        parts.append(f"its unfinished transactions are ended: {', '.join(ended)}")
    lost = sorted(remains.segments.transactions.keys() - remains.transactions.keys())
    if lost:
        parts.append(
            f"whether these of its transactions were committed is lost, their segments stay: {', '.join(lost)}"
        )
    return "; ".join(parts) + _sealed(made.stream)


def _sealed(stream: Stream) -> str:
    return "; it is sealed, as all its segments were" if stream.state is StreamState.SEALED else ""


def _told(made: StreamAnew, what: str) -> StreamAnew:
    if not made.name.stream.startswith(MARK_PREFIX):  # it goes with its stream, which is told
        made.told = f"stream {made.name}: {what}"
    return made


def _segments(count: int) -> str:
    return f"{count:,} segment{'s' if count != 1 else ''}"
