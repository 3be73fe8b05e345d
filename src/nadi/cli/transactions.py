"""`nadi transaction`: begin, show, extend and end transactions by id.

`nadi write --into ID` writes events into one. A renewed lease lasts as long as the command says, regardless of its
previous length. A server doesn't list open transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Scope, Stream, Yes
from nadi.cli.printing import confirm, say
from nadi.cli.session import Resource

if TYPE_CHECKING:
    from nadi.client import StreamManager

Id = Annotated[str, typer.Argument(help="Id of the transaction.", metavar="ID")]
Lease = Annotated[str, typer.Option(help="Time without a ping after which it is aborted: 90s, 1h, 7d.")]
transaction_app = Resource(
    noun="transaction",
    names={"scope": Scope, "stream": Stream, "txn_id": Id},
    show=lambda manager, scope, stream, txn_id: {
        "id": txn_id,
        "state": manager.transaction_status(scope, stream, txn_id),
    },
).app()


@transaction_app.command("begin")
def begin(manager: StreamManager, scope: Scope, stream: Stream, lease: Lease = "10min") -> None:
    """Begin a transaction and print its id. `nadi transaction ping` renews its lease."""
    from nadi.cli.amounts import age_s

    with manager.create_transaction_writer(scope, stream) as writer:
        say(str(writer.begin_txn(round(age_s(lease) * 1000)).txn_id))


@transaction_app.command("ping")
def ping(manager: StreamManager, scope: Scope, stream: Stream, txn_id: Id, lease: Lease = "10min") -> None:
    """Renew a transaction's lease, starting now."""
    from nadi.cli.amounts import age_s

    lease_ms = round(age_s(lease) * 1000)
    with manager.create_transaction_writer(scope, stream, lease_ms=lease_ms) as writer:
        writer.get_txn(txn_id).ping()
    say(f"renewed the lease of transaction {txn_id} for {lease}")


@transaction_app.command("commit")
def commit(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    txn_ids: Annotated[list[str], typer.Argument(help="Ids. Several are committed atomically.", metavar="ID...")],
    timeout: Annotated[float, typer.Option(help="Seconds to wait until readers see the events.", min=0.1)] = 120.0,
) -> None:
    """Commit transactions and wait until readers see their events."""
    with manager.create_transaction_writer(scope, stream) as writer:
        if len(txn_ids) == 1:
            writer.get_txn(txn_ids[0]).commit(wait=True, timeout=timeout)
        else:
            writer.commit_together(txn_ids, wait=True, timeout=timeout)
    say(f"committed {len(txn_ids)} transactions" if len(txn_ids) > 1 else f"committed transaction {txn_ids[0]}")


@transaction_app.command("abort")
def abort(manager: StreamManager, scope: Scope, stream: Stream, txn_id: Id, yes: Yes = False) -> None:
    """Abort a transaction and discard its events."""
    confirm(f"Discard the events of transaction {txn_id}?", yes)
    with manager.create_transaction_writer(scope, stream) as writer:
        writer.get_txn(txn_id).abort(wait=True)
    say(f"aborted transaction {txn_id}")
