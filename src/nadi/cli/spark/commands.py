"""`nadi spark`: what `format("nadi")` and `format("pravega")` may be given, mirrored checkpoints, faster sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.options import Scope
from nadi.cli.printing import Form, errors_told, say, show
from nadi.cli.session import Resource, awaited
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.client import StreamManager

spark_app = typer.Typer(no_args_is_help=True)
_REHEARSAL_S = 600.0


@spark_app.command("options")
def show_options(
    name: Annotated[str, typer.Option("--format", help="nadi or pravega: defaults differ.")] = "nadi",
    use: Annotated[str | None, typer.Option(help="Only those of read, readStream, write or writeStream.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the guide, for both formats.")] = False,
    form: Form = Form.TABLE,
) -> None:
    """List the options of Spark's reads and writes: where each has an effect, its default, its meaning."""
    from nadi.spark.options.table import OPTIONS, SparkFormat, default_in, uses_text
    from nadi.spark.options.table import markdown as as_markdown

    if markdown:
        if use is not None or form is not Form.TABLE:
            raise InvalidArgumentError("--markdown is all there is: leave out --use, --json and -o")
        say(as_markdown().rstrip("\n"))
        return
    if name not in {one.value for one in SparkFormat}:
        raise InvalidArgumentError(f"there is no format {name[:40]!r}: there are nadi and pravega")
    uses = ("read", "readStream", "write", "writeStream")
    if use is not None and use not in uses:
        raise InvalidArgumentError(f"options aren't given to {use[:40]!r}, but to {', '.join(uses)}")
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
def make_archive(delete: Annotated[bool, typer.Option("--delete", help="Delete it instead.")] = False) -> None:
    """Archive Spark's classes, so that sessions of nadi.spark.tuned start in half the time. Takes half a minute, and
    190 MB in ~/.cache/nadi."""
    with errors_told(OSError):
        if delete:
            say(delete_archive())
            return
        say("Spark runs once, for half a minute, and Java notes which classes it needs...")
        say(write_archive())


def write_archive() -> str:
    """Write it, in place of an older one; what to tell the user. NadiError if that fails."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _rehearse(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return f"{file} has {file.stat().st_size / 1e6:,.0f} MB: sessions of nadi.spark.tuned use it from now on"


def delete_archive() -> str:
    """What to tell the user."""
    file = _file()
    if not file.is_file():
        return f"there is none: {file}"
    file.unlink()
    return f"deleted {file}"


def _rehearse(draft: Path) -> None:
    command = [sys.executable, "-m", "nadi.cli.spark.rehearsal", str(draft)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_REHEARSAL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NadiError(f"Spark did not end within {_REHEARSAL_S:.0f} s: nothing was written") from error
    if done.returncode or not draft.is_file():
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise NadiError(f"Java wrote no archive (it takes Java 17 or newer):\n{last}")


def _file() -> Path:
    from nadi.spark.tuning import archive_file

    try:
        file = archive_file()
    except ImportError as error:
        raise NadiError("there is no pyspark here: pip install 'nadi[spark]'") from error
    if file is None:
        raise NadiError("there is no Java here: set JAVA_HOME, or install one (Java 17 or newer)")
    return file


# --- checkpoints -----------------------------------------------------------------------------------------


def _rows(manager: StreamManager, scope: str) -> Any:
    from nadi.spark.mirror import all_mirrored

    kept, unreadable = awaited(manager, lambda core: all_mirrored(core, scope))
    rows = [
        {
            "name": one.name,
            "query": one.query_id,
            "batch": one.batch,
            "files": one.files,
            "bytes": one.size_bytes,
            "mirrored": datetime.fromtimestamp(one.time_ms // 1000, UTC).isoformat(),
        }
        for one in kept
    ]
    return rows, unreadable


checkpoint_app = Resource(
    noun="mirrored checkpoint",
    names={"scope": Scope, "name": str},
    columns=["name", "query", "batch", "files", "bytes", "mirrored"],
    rows=_rows,
).app()
spark_app.add_typer(checkpoint_app, name="checkpoint", help="Checkpoints of Spark's queries, mirrored into a scope.")


@checkpoint_app.command("restore")
def restore_checkpoint(manager: StreamManager, scope: Scope, name: str, folder: str) -> None:
    """Write a mirrored checkpoint into a new folder, from which the query continues."""
    from nadi.spark.mirror import restore

    with errors_told(OSError):
        one = awaited(manager, lambda core: restore(core, scope, name, folder))
    say(f"batch {one.batch} of query {one.query_id}, {one.files:,} files, {one.size_bytes:,} bytes in {folder}")
