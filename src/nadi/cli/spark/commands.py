"""`nadi spark`: what `format("nadi")` and `format("pravega")` may be given, mirrored checkpoints, faster sessions."""

from __future__ import annotations

from typing import Annotated

import typer

from nadi.cli.printing import Form, say, show
from nadi.cli.session import Controller, TrustStore, formed
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError

spark_app = typer.Typer(help="Streams in Spark.", no_args_is_help=True)
checkpoint_app = typer.Typer(help="Checkpoints of Spark's queries, mirrored into a scope.", no_args_is_help=True)
spark_app.add_typer(checkpoint_app, name="checkpoint")


@spark_app.callback()
def of_spark() -> None:
    pass


@spark_app.command("options")
@formed
def show_options(
    name: Annotated[str, typer.Option("--format", help="nadi or pravega: defaults differ.")] = "nadi",
    use: Annotated[str | None, typer.Option(help="Only those of read, readStream, write or writeStream.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the guide, for both formats.")] = False,
    form: Form = Form.TABLE,
) -> None:
    """List the options of Spark's reads and writes: where each has an effect, its default, its meaning."""
    from nadi.cli.printing import errors_told
    from nadi.spark.options.table import OPTIONS, Format, default_in, uses_text
    from nadi.spark.options.table import markdown as as_markdown

    with errors_told():
        if markdown:
            if use is not None or form is not Form.TABLE:
                raise InvalidArgumentError("--markdown is all there is: leave out --use, --json and -o")
            say(as_markdown().rstrip("\n"))
            return
        if name not in {one.value for one in Format}:
            raise InvalidArgumentError(f"there is no format {name[:40]!r}: there are nadi and pravega")
        uses = ("read", "readStream", "write", "writeStream")
        if use is not None and use not in uses:
            raise InvalidArgumentError(f"options aren't given to {use[:40]!r}, but to {', '.join(uses)}")
        rows = [
            {
                "option": option.name,
                "also": list(option.also),
                "in": uses_text(option),
                "default": default_in(option, Format(name)),
                "meaning": option.meaning,
            }
            for option in OPTIONS
            if use is None or use in uses_text(option).split(", ")
        ]
        show(rows, ["option", "in", "default", "meaning"], form=form, empty="")


@spark_app.command("archive")
def make_archive(
    delete: Annotated[bool, typer.Option("--delete", help="Delete it instead.")] = False,
) -> None:
    """Archive Spark's classes, so that sessions of nadi.spark.tuned start in half the time. Takes half a minute, and
    190 MB in ~/.cache/nadi."""
    from nadi.cli.printing import errors_told
    from nadi.cli.spark.archiving import delete_archive, write_archive

    with errors_told(OSError):
        if delete:
            say(delete_archive())
            return
        say("Spark runs once, for half a minute, and Java notes which classes it needs...")
        say(write_archive())


@checkpoint_app.command("list")
@formed
def list_checkpoints(
    scope: str, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None, form: Form = Form.TABLE
) -> None:
    """List the mirrored checkpoints of a scope."""
    from datetime import UTC, datetime

    from nadi.cli.printing import errors_told
    from nadi.client.scan.connection import Connection
    from nadi.spark.checkpoints.mirror import all_mirrored
    from nadi.spark.connections import client_of

    with errors_told():
        client = client_of(Connection(controller, trust_store=trust_store))
        rows = [
            {
                "name": one.name,
                "query": one.query_id,
                "batch": one.batch,
                "files": one.files,
                "bytes": one.size_bytes,
                "mirrored": datetime.fromtimestamp(one.time_ms // 1000, UTC).isoformat(),
            }
            for one in client.run(all_mirrored(client.manager, scope))
        ]
        show(rows, ["name", "query", "batch", "files", "bytes", "mirrored"], form=form, empty="no checkpoints")


@checkpoint_app.command("restore")
def restore_checkpoint(
    scope: str, name: str, folder: str, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Write a mirrored checkpoint into a folder that is not there yet: the query goes on from it."""
    from nadi.cli.printing import errors_told
    from nadi.client.scan.connection import Connection
    from nadi.spark.checkpoints.mirror import restore
    from nadi.spark.connections import client_of

    with errors_told(OSError):
        client = client_of(Connection(controller, trust_store=trust_store))
        kept = client.run(restore(client.manager, scope, name, folder))
        say(f"batch {kept.batch} of query {kept.query_id}, {kept.files:,} files, {kept.size_bytes:,} bytes in {folder}")
