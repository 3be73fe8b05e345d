"""docs/compatibility.md's tables, written from what the compatibility tests recorded.

`served.json` beside this file holds, by client, all that any run recorded. `script/compatibility` adds a
run to it and writes the tables anew; delete the file first to begin from nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc

from nadi.wire.commands import CODES
from nadi.wire.rpc.service import METHODS
from tests.compatibility import record
from tests.compatibility.record import Record, Served

SERVED = Path(__file__).with_name("served.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- recorded tables: begin -->", "<!-- recorded tables: end -->"

COLUMNS = {  # client in the record: column's head
    "nadi": "nadi",
    "official Python": "official Python",
    "official Java": "official Java",
    "official Rust": "official Rust",
}
CONTROLLER = "nadi's controller, in the server"
DIRECT = "direct calls"
KEPT = (*COLUMNS, CONTROLLER, DIRECT)
NONE = "–"

# Why nobody was seen to use it, or what is different from what one might expect.
RPC_NOTES = {
    "getSegments": "the official clients send no timestamp: the head; with one nadi gives the cut of that moment",
    "getControllerServerList": "Java, for `pravega://` addresses",
    "getSegmentsImmediatlyFollowing": "misspelt; asked by clients older than those here",
    "getDelegationToken": "without authentication an empty one; Python does not ask then",
    "isSegmentValid": "no client's feature asks it",
    "isStreamCutValid": "no client's feature asks it",
    "getControllerToBucketMapping": "for operators of Pravega's controllers; no client asks it",
    "removeWriter": "nadi, when a writer is closed; Java by its internal interface alone",
    "listSubscribers": "Java, by its internal interface alone",
    "pingTransaction": "Python asks first after 90 s, longer than its tests last",
    "getReaderGroupConfig": "Java, where two set up one group differently",
    "scale": "Java, by its internal interface alone; Python not at all",
    "checkScale": "as `scale`",
    "listStreamsInScope": "Python does not look at SCOPE_NOT_FOUND: an absent scope is an empty one to it",
    "commitTransaction": "too late is TRANSACTION_NOT_FOUND, which no client repeats",
    "abortTransaction": "too late is TRANSACTION_NOT_FOUND, which no client repeats",
    "createTransaction": "of a sealed stream INVALID_ARGUMENT, which no client repeats",
}
# What a client sees or misses by chance: states passed through, and replies to whoever comes too late.
BY_CHANCE = {"IN_PROGRESS", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED", "CANCELLED"}
BY_CHANCE |= {"NoSuchSegment", "SegmentIsSealed", "SegmentIsTruncated", "SegmentAlreadyExists", "KeepAlive"}
BY_CHANCE |= {"ConditionalCheckFailed", "TableKeyBadVersion", "ReportKeys"}
BY_CHANCE |= {"NOT_FOUND", "UNAVAILABLE"}  # asked late about what its test has deleted, or while it is being made
COMMAND_NOTES = {
    "KeepAlive": "Java, on a quiet connection; answered",
    "AppendBlock": "Java; the others send a whole append as AppendBlockEnd",
    "ConditionalAppend": "Java, for the state of its reader groups; the controller, for watermarks",
    "ConditionalBlockEnd": "its `after_event_number` is nadi's own: its byte streams send several at once",
    "WrongHost": "of a store that does not have the segment; `nadi up` has all",
    "AuthTokenCheckFailed": "sent where authentication is on",
    "LocateOffset": "Java from version 17 of the protocol, after 0.13.0",
    "LocateMoment": "nadi's own, asked by its controller: where a segment stood at a moment",
    "MomentLocated": "nadi's own",
    "UpdateTableToFreeRoom": "nadi's own, of its controller: taken on a full disk too",
    "Scrub": "nadi's own, for `nadi scrub`",
    "ScrubReported": "nadi's own",
    "ReportKeys": "nadi's own, of its writers to its servers: where their keys are",
    "GetSegmentLoads": "nadi's own, asked by its controller: what passes into segments",
    "SegmentLoads": "nadi's own",
    "LocateChunks": "nadi's own, of Spark tasks that can read tier 2: which chunks have a segment's bytes",
    "ChunksLocated": "nadi's own",
    "ListMoments": "nadi's own, of Spark tasks: when the bytes of a range came",
    "MomentsListed": "nadi's own",
    "ListEventSizes": "nadi's own, of Spark: where events lie, for reads that need none of their bytes",
    "EventSizesListed": "nadi's own",
    "IndexTimes": "nadi's own: adds events' own times to the time index of their segment",
    "TimesIndexed": "nadi's own",
    "ReadTableEntriesDelta": "Python, for the state of its reader groups",
    "SegmentIsSealed": "also for a piece of a large event whose segment is sealed: Rust and Python look for it there",
    "FlushToStorage": "administration; not on the clients' port",
    "StorageFlushed": "administration; not on the clients' port",
    "InvalidEventNumber": "two connections with one writer id; the connection ends",
    "MergeSegments": "large events",
    "MergeSegmentsBatch": "the controller's commit; no client sends it",
}


def load() -> dict[str, Served]:
    return record.decode(SERVED.read_bytes()) if SERVED.exists() else {}


def missing(recorded: Record, known: dict[str, Served]) -> list[str]:
    """What a run recorded that `known` does not have, other than what comes by chance."""
    found: list[str] = []
    for client, served in recorded.items():
        if client not in KEPT:
            continue
        before = known.get(client, Served())
        for rpc, outcomes in served.rpcs.items():
            found += [f"{client}: {rpc} {outcome}" for outcome in outcomes - before.rpcs.get(rpc, set()) - BY_CHANCE]
        found += [f"{client}: receives {name}" for name in served.received - before.received - BY_CHANCE]
        found += [f"{client}: is sent {name}" for name in served.sent - before.sent - BY_CHANCE]
    return sorted(found)


def add(recorded: Record) -> dict[str, Served]:
    """Add a run's record to `served.json`."""
    known = load()
    for client, served in recorded.items():
        if client in KEPT:
            known.setdefault(client, Served()).add(served)
    SERVED.write_bytes(record.encode(known))
    return known


def render(served: dict[str, Served]) -> str:
    return "\n".join([*_rpcs(served), "", *_commands(served)])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rpcs(served: dict[str, Served]) -> list[str]:
    lines = [f"### The {len(METHODS)} RPCs", ""]
    lines += [_row(["RPC", *COLUMNS.values(), "notes"]), _row(["---"] * (len(COLUMNS) + 2))]
    for rpc in METHODS:
        outcomes = [served.get(client, Served()).rpcs.get(rpc, set()) for client in COLUMNS]
        note = RPC_NOTES.get(rpc, "")
        if served.get(DIRECT, Served()).rpcs.get(rpc) == {grpc.StatusCode.UNIMPLEMENTED.name}:
            note = "; ".join(filter(None, ["**not supported yet**", note]))
        lines.append(_row([f"`{rpc}`", *(", ".join(sorted(each)) or NONE for each in outcomes), note]))
    return lines


def _commands(served: dict[str, Served]) -> list[str]:
    clients = [*COLUMNS, CONTROLLER]
    lines = [f"### The {len(CODES)} wire commands", ""]
    lines += [_row(["code", "command", *COLUMNS.values(), "controller", "notes"])]
    lines += [_row(["---"] * (len(clients) + 3))]
    for code, kind in sorted(CODES.items()):
        name = kind.__name__
        cells = []
        for client in clients:
            each = served.get(client, Served())
            arrows = ["→"] * (name in each.received) + ["←"] * (name in each.sent)
            cells.append(" ".join(arrows) or NONE)
        lines.append(_row([str(code), f"`{name}`", *cells, COMMAND_NOTES.get(name, "")]))
    return lines


def rewritten(document: str, served: dict[str, Served]) -> str:
    """The document with its tables written anew."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render(served)}\n{END}{after}"


def main() -> None:
    served = add(record.decode(Path(sys.argv[1]).read_bytes())) if len(sys.argv) > 1 else load()
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(), served))


if __name__ == "__main__":
    main()
