"""Render the compatibility tables from the requests and responses that the tests recorded.

`served.json` in this folder holds, by client, everything that any run recorded. `script/compatibility` adds a run;
delete the file first to start from nothing. The site's build puts `render()` into reference/compatibility.md.
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
NOT_USED = f"`{NONE}` means that no test made the client use it."

# Explains an empty row or an unexpected outcome.
RPC_NOTES = {
    "getSegments": "official clients send no timestamp and get the head; with one, nadi returns the cut of that moment",
    "getControllerServerList": "Java, for `pravega://` addresses",
    "getSegmentsImmediatlyFollowing": "misspelt; sent by older clients only",
    "getDelegationToken": "empty without authentication; Python doesn't request it then",
    "isSegmentValid": "unused by these clients",
    "isStreamCutValid": "unused by these clients",
    "getControllerToBucketMapping": "for operators of Pravega's controllers; unused by clients",
    "removeWriter": "nadi, when a writer is closed; Java through its internal interface only",
    "listSubscribers": "Java, through its internal interface only",
    "pingTransaction": "Python sends its first ping after 90 s, longer than its tests run",
    "getReaderGroupConfig": "Java, if two programs configure one group differently",
    "scale": "Java, through its internal interface only; never Python",
    "checkScale": "as `scale`",
    "listStreamsInScope": "Python ignores SCOPE_NOT_FOUND and treats a missing scope as empty",
    "commitTransaction": "too late: TRANSACTION_NOT_FOUND, which clients don't repeat",
    "abortTransaction": "too late: TRANSACTION_NOT_FOUND, which clients don't repeat",
    "createTransaction": "sealed stream: INVALID_ARGUMENT, which clients don't repeat",
}
# Outcomes that depend on timing: transient states, and replies to late requests.
BY_CHANCE = {"IN_PROGRESS", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED", "CANCELLED"}
BY_CHANCE |= {"NoSuchSegment", "SegmentIsSealed", "SegmentIsTruncated", "SegmentAlreadyExists", "KeepAlive"}
BY_CHANCE |= {"ConditionalCheckFailed", "TableKeyBadVersion", "ReportKeys"}
BY_CHANCE |= {"NOT_FOUND", "UNAVAILABLE"}  # late requests after a deletion, or during a creation
COMMAND_NOTES = {
    "KeepAlive": "Java, on a quiet connection; answered",
    "AppendBlock": "Java; other clients send a whole append as AppendBlockEnd",
    "ConditionalAppend": "Java, for the state of its reader groups; the controller, for watermarks",
    "ConditionalBlockEnd": "its `after_event_number` is nadi's own: its byte streams send several at once",
    "WrongHost": "from a store that doesn't own the segment; a single server owns all",
    "AuthTokenCheckFailed": "sent where authentication is on",
    "LocateOffset": "Java from protocol version 17, after 0.13.0",
    "LocateMoment": "nadi's own, from its controller: a segment's offset at a moment",
    "MomentLocated": "nadi's own",
    "UpdateTableToFreeSpace": "nadi's own, from its controller: accepted on a full disk",
    "Scrub": "nadi's own, for `nadi scrub`",
    "ScrubReported": "nadi's own",
    "ReportKeys": "nadi's own, from its writers: the distribution of their keys",
    "GetSegmentLoads": "nadi's own, from its controller: the load of segments",
    "SegmentLoads": "nadi's own",
    "LocateChunks": "nadi's own, from Spark tasks that read tier 2: the chunks of a segment",
    "ChunksLocated": "nadi's own",
    "ListMoments": "nadi's own, from Spark tasks: append times of a range",
    "MomentsListed": "nadi's own",
    "ListEventSizes": "nadi's own, from Spark: event boundaries, for reads without event bytes",
    "EventSizesListed": "nadi's own",
    "IndexTimes": "nadi's own: adds event times to a segment's time index",
    "TimesIndexed": "nadi's own",
    "ReadTableEntriesDelta": "Python, for the state of its reader groups",
    "SegmentIsSealed": "also for a piece of a large event, where Rust and Python expect it",
    "FlushToStorage": "administration; not on the clients' port",
    "StorageFlushed": "administration; not on the clients' port",
    "InvalidEventNumber": "two connections with one writer id; the connection ends",
    "MergeSegments": "large events",
    "MergeSegmentsBatch": "the controller's commit; unused by clients",
}


def load() -> dict[str, Served]:
    return record.decode(SERVED.read_bytes()) if SERVED.exists() else {}


def missing(recorded: Record, known: dict[str, Served]) -> list[str]:
    """List outcomes of a run that `known` lacks, except those that depend on timing."""
    outcomes_missing: list[str] = []
    for client, served in recorded.items():
        if client not in KEPT:
            continue
        before = known.get(client, Served())
        for rpc, outcomes in served.rpcs.items():
            outcomes_missing += [
                f"{client}: {rpc} {outcome}" for outcome in outcomes - before.rpcs.get(rpc, set()) - BY_CHANCE
            ]
        outcomes_missing += [f"{client}: receives {name}" for name in served.received - before.received - BY_CHANCE]
        outcomes_missing += [f"{client}: is sent {name}" for name in served.sent - before.sent - BY_CHANCE]
    return sorted(outcomes_missing)


def add(recorded: Record) -> dict[str, Served]:
    """Add a run's record to `served.json`."""
    known = load()
    for client, served in recorded.items():
        if client in KEPT:
            known.setdefault(client, Served()).add(served)
    SERVED.write_bytes(record.encode(known))
    return known


def render() -> str:
    """Return the tables of `served.json` as markdown, without a page title."""
    served = load()
    return "\n".join([*_rpcs(served), "", *_commands(served), ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rpcs(served: dict[str, Served]) -> list[str]:
    lines = [f"## The {len(METHODS)} RPCs", ""]
    lines += ["A cell lists the outcomes a client received; `OK` is a reply without a status.", NOT_USED, ""]
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
    lines = [f"## The {len(CODES)} wire commands", ""]
    lines += ["`→` marks a command received from the client, `←` one sent to it. The column `controller` is nadi's own"]
    lines += ["controller, which sends the same commands within the server.", NOT_USED, ""]
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


def main() -> None:
    for path in sys.argv[1:]:
        add(record.decode(Path(path).read_bytes()))
    sys.stdout.write(render())


if __name__ == "__main__":
    main()
