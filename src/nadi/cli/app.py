"""The `nadi` command: `nadi up` serves a data folder, or is one of a cluster's servers, which `nadi cluster` operates.
`nadi migrate` moves the data of one to the other, `nadi passwd` keeps a users file, `nadi check` and `nadi repair` look
after a stopped folder, `nadi spark` lists Spark's options. All others are clients of a running server."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from nadi import __version__
from nadi.cli.admin.check import check
from nadi.cli.admin.migrate import migrate
from nadi.cli.admin.passwd import passwd
from nadi.cli.admin.repair import repair
from nadi.cli.admin.tier2 import tier2_app
from nadi.cli.admin.up import up
from nadi.cli.bookmarks import bookmark_app, slice_app
from nadi.cli.cluster.commands import cluster_app
from nadi.cli.events.read import read
from nadi.cli.events.splits import read_split, splits
from nadi.cli.events.tail import tail
from nadi.cli.events.write import write
from nadi.cli.files.exporting import export
from nadi.cli.files.importing import import_file
from nadi.cli.following.functions import function_app
from nadi.cli.following.lake import lake_app
from nadi.cli.groups import group_app
from nadi.cli.ingest.files import ingest
from nadi.cli.ingest.syslog import ingest_syslog
from nadi.cli.machine.bench import bench
from nadi.cli.machine.doctor import doctor
from nadi.cli.machine.top import top
from nadi.cli.printing import failure, say
from nadi.cli.scrub import scrub
from nadi.cli.search.indexes import search_app
from nadi.cli.spark.commands import spark_app
from nadi.cli.sql.command import sql
from nadi.cli.stream_tables import stream_table_app
from nadi.cli.streams import scope_app, stream_app
from nadi.cli.tables import table_app
from nadi.cli.transactions import txn_app

app = typer.Typer(help="Streaming storage: keep streams, bookmark them, replay any slice.", no_args_is_help=True)
app.command()(up)
app.command()(check)
app.command()(repair)
app.command()(migrate)
app.command()(passwd)
app.command()(scrub)
app.command()(doctor)
app.command()(bench)
app.command()(top)
app.command()(write)
app.command()(read)
app.command()(tail)
app.command()(splits)
app.command()(read_split)
app.command()(sql)
app.command()(export)
app.command("import")(import_file)
app.command()(ingest)
app.command()(ingest_syslog)
app.add_typer(scope_app, name="scope")
app.add_typer(stream_app, name="stream")
app.add_typer(bookmark_app, name="bookmark")
app.add_typer(slice_app, name="slice")
app.add_typer(group_app, name="group")
app.add_typer(table_app, name="table")
app.add_typer(stream_table_app, name="stream-table")
app.add_typer(txn_app, name="txn")
app.add_typer(function_app, name="function")
app.add_typer(lake_app, name="lake")
app.add_typer(search_app, name="search")
app.add_typer(spark_app, name="spark")
app.add_typer(cluster_app, name="cluster")
app.add_typer(tier2_app, name="tier2")


def _print_version(asked: bool) -> None:
    if asked:
        say(f"nadi {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print nadi's version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    _open_standard_files()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, _end)
    sys.unraisablehook = _end_again
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it has to say, errors say
    try:
        import nadi.limits  # noqa: F401 - here, for it raises where NADI_LIMITS is wrong
    except ValueError as error:
        failure(error)
        sys.exit(2)  # as for an option that is wrong
    try:
        app()
    except OSError as error:  # standard output that takes no more, say
        failure(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what it still holds
        sys.exit(1)


def _open_standard_files() -> None:
    """Nothing, for those that are closed: else the first connection would be taken for one of them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _end(number: int, _: object) -> None:
    """Leave as after Ctrl-C: what was begun is put away, and what is stored is said."""
    raise SystemExit(128 + number)


def _end_again(ignored: sys.UnraisableHookArgs) -> None:
    """An end that was told while an object was thrown away, which Python ignores there, is told again soon."""
    end = ignored.exc_value
    if not isinstance(end, SystemExit | KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    kind, arguments = type(end), end.args

    def tell(_number: int, _frame: object) -> None:
        raise kind(*arguments)

    signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


if __name__ == "__main__":
    main()
