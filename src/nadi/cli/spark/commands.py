"""`nadi spark`: options of `format("nadi")` and `format("pravega")`, mirrored checkpoints, and the class archive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.options import Scope
from nadi.cli.printing import Form, reporting_errors, say, show, utc
from nadi.cli.session import Resource, awaited
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.client import StreamManager

spark_app = typer.Typer(no_args_is_help=True)
_REHEARSAL_S = 600.0


@spark_app.command("options")
def show_options(
    name: Annotated[str, typer.Option("--format", help="nadi or pravega; their defaults differ.")] = "nadi",
    use: Annotated[
        str | None, typer.Option(help="List only options of read, readStream, write or writeStream.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table for both formats.")] = False,
    form: Form = Form.TABLE,
) -> None:
    """List the options of Spark reads and writes: where each applies, its default, its meaning."""
    from nadi.spark.options.table import OPTIONS, SparkFormat, default_in, uses_text
    from nadi.spark.options.table import markdown as as_markdown

    if markdown:
        if use is not None or form is not Form.TABLE:
            raise InvalidArgumentError("--markdown can't be combined with --use, --json or -o: omit them")
        say(as_markdown().rstrip("\n"))
        return
    if name not in {known.value for known in SparkFormat}:
        raise InvalidArgumentError(f"unknown format {name[:40]!r}: use nadi or pravega")
    uses = ("read", "readStream", "write", "writeStream")
    if use is not None and use not in uses:
        raise InvalidArgumentError(f"unknown use {use[:40]!r}: use one of {', '.join(uses)}")
    rows = [
        {
            "option": option.name,
            "also": list(option.also),
            "in": uses_text(option),
            "default": default_in(option, SparkFormat(name)),
            "meaning": option.meaning,
        }
        for option in OPTIONS
        if use is None or use in uses_text(option).split(", ")
    ]
    show(rows, ["option", "in", "default", "meaning"], form=form)


@spark_app.command("archive")
def make_archive(delete: Annotated[bool, typer.Option("--delete", help="Delete the archive.")] = False) -> None:
    """Create an archive of Spark's classes, so that sessions of nadi.spark.tuned start in half the time.

    It takes half a minute, and 190 MB in ~/.cache/nadi.
    """
    with reporting_errors(OSError):
        if delete:
            say(delete_archive())
            return
        say("Running Spark once to record which classes it loads (about 30 s)...")
        say(write_archive())


def write_archive() -> str:
    """Write the archive, replacing an older one; return a message for the user. NadiError if that fails."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _rehearse(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return f"wrote {file} ({file.stat().st_size / 1e6:,.0f} MB): sessions of nadi.spark.tuned use it automatically"


def delete_archive() -> str:
    """Delete the archive; return a message for the user."""
    file = _file()
    if not file.is_file():
        return f"{file} doesn't exist"
    file.unlink()
    return f"deleted {file}"


def _rehearse(draft: Path) -> None:
    command = [sys.executable, "-m", "nadi.cli.spark.rehearsal", str(draft)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_REHEARSAL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NadiError(f"Spark didn't finish within {_REHEARSAL_S:.0f} s: no archive was written") from error
    if done.returncode or not draft.is_file():
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise NadiError(f"Java didn't write an archive (Java 17 or newer is required):\n{last}")


def _file() -> Path:
    from nadi.spark.tuning import archive_file

    try:
        file = archive_file()
    except ImportError as error:
        raise NadiError("pyspark is not installed: pip install 'nadi[spark]'") from error
    if file is None:
        raise NadiError("Java was not found: install Java 17 or newer, or set JAVA_HOME")
    return file


# --- checkpoints -----------------------------------------------------------------------------------------


def _rows(manager: StreamManager, scope: str) -> Any:
    from nadi.spark.mirror import all_mirrored

    checkpoints, unreadable = awaited(manager, lambda core: all_mirrored(core, scope))
    rows = [
        {
            "name": checkpoint.name,
            "query": checkpoint.query_id,
            "batch": checkpoint.batch,
            "files": checkpoint.files,
            "bytes": checkpoint.size_bytes,
            "mirrored": utc(checkpoint.time_ms),
        }
        for checkpoint in checkpoints
    ]
    return rows, unreadable


checkpoint_app = Resource(
    noun="mirrored checkpoint",
    names={"scope": Scope, "name": str},
    columns=["name", "query", "batch", "files", "bytes", "mirrored"],
    rows=_rows,
).app()
spark_app.add_typer(checkpoint_app, name="checkpoint", help="Manage Spark checkpoints that are mirrored into a scope.")


@checkpoint_app.command("restore")
def restore_checkpoint(manager: StreamManager, scope: Scope, name: str, folder: str) -> None:
    """Restore a mirrored checkpoint into a new folder, from which the query can continue."""
    from nadi.spark.mirror import restore

    with reporting_errors(OSError):
        checkpoint = awaited(manager, lambda core: restore(core, scope, name, folder))
    say(
        f"restored batch {checkpoint.batch} of query {checkpoint.query_id} to {folder}: "
        f"{checkpoint.files:,} files, {checkpoint.size_bytes:,} bytes"
    )
