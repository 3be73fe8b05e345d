"""The `nadi` command: `nadi up` serves a data folder, or is one of a cluster's servers, which `nadi cluster` operates.
`nadi migrate` moves the data of one to the other, `nadi passwd` keeps a users file, `nadi check` and `nadi repair` look
after a stopped folder, `nadi spark` lists Spark's options. All others are clients of a running server."""

from __future__ import annotations

import os
import signal
import sys
from collections import UserDict
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import nadi
from nadi.cli.printing import INTERRUPTED, failure, say

# Also what is empty by default.
_MAY_BE_EMPTY = {"key", "secondary", "value", "prefix", "primary", "first", "last", "note", "grep"}


class _CliCommand(TyperCommand):
    """A command that refuses empty text, which is what an unset variable of the shell becomes: a path would be the
    current folder, a name or a place none at all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for param in self.params:
            values = given.get(param.name or "")
            texts = values if isinstance(values, list | tuple) else [values]
            if "" in texts and param.default != "" and param.name not in _MAY_BE_EMPTY:
                what = "it is empty: is a variable of the shell unset?"
                raise typer.BadParameter(what, ctx=ctx, param=param)
        return super().parse_args(ctx, args)


class _Commands(UserDict[str, Any]):
    """Commands by name, each imported and built when it is looked up: one command needs no other's modules."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(home := self.data[name], str):
            self.data[name] = _built(name, home)
        return self.data[name]


def _built(name: str, home: str) -> Any:
    """A command, or a group of them, from its function or Typer."""
    module, _, attribute = home.rpartition(".")
    made = getattr(import_module(f"nadi.cli.{module}"), attribute)
    one = typer.Typer(add_completion=False, callback=lambda: None)  # with a callback it is a group in any case
    if isinstance(made, typer.Typer):
        one.add_typer(made, name=name, help=_COMMANDS[name][1])
    else:
        one.command(name)(made)
    _prepare(one)
    return typer.main.get_command(one).commands[name]  # type: ignore[attr-defined]


def _prepare(commands: typer.Typer) -> None:
    from nadi.cli.session import prepared

    for command in commands.registered_commands:
        assert command.callback is not None, "each has a function"
        command.cls, command.callback = _CliCommand, prepared(command.callback)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _prepare(group.typer_instance)


# in the order of the help, which says what they do without importing them
_COMMANDS = {
    "up": ("admin.up.up", "Serve a data folder, or a part of a cluster's store."),
    "check": ("admin.repair.check", "Check every byte of a stopped data folder."),
    "repair": ("admin.repair.repair", "Repair a damaged data folder."),
    "migrate": ("admin.migrate.migrate", "Move everything of a data folder, or of a cluster's store."),
    "passwd": ("admin.passwd.passwd", "Add or change a user in a users file."),
    "scrub": ("scrub.scrub", "Have the server read and check all stored data."),
    "doctor": ("doctor.doctor", "Check this machine, the disk and the server."),
    "write": ("events.write.write", "Write events from standard input or files."),
    "read": ("events.read.read", "Print the events of a stream, a slice or splits."),
    "tail": ("events.read.tail", "Print the last events of a stream, and new ones."),
    "splits": ("events.read.splits", "Divide a range of a stream among readers."),
    "sql": ("sql.command.sql", "Query streams by SQL."),
    "export": ("files.export", "Write a range of a stream into a file."),
    "import": ("files.import_file", "Write the events of a file into a stream."),
    "scope": ("streams.scope_app", "Scopes: the namespaces of streams."),
    "stream": ("streams.stream_app", "Streams, their segments, scaling and retention."),
    "bookmark": ("bookmarks.bookmark_app", "Bookmarks: names for cuts of streams."),
    "slice": ("bookmarks.slice_app", "Slices: names for the events between two cuts."),
    "group": ("groups.group_app", "Reader groups, their lag and checkpoints."),
    "table": ("tables.table_app", "Key-value tables, their keys and entries."),
    "stream-table": ("stream_tables.stream_table_app", "Stream tables: streams read as tables."),
    "transaction": ("transactions.transaction_app", "Transactions, by their ids."),
    "function": ("functions.function_app", "Functions that streams trigger."),
    "processor": ("functions.processor_app", "Programs that process streams with `nadi.process`."),
    "lake": ("lake.lake_app", "Iceberg tables that are kept level with streams."),
    "search": ("search.search_app", "Full-text search, and standing queries."),
    "spark": ("spark.commands.spark_app", "Streams in Spark."),
    "cluster": ("cluster.commands.cluster_app", "The servers of a cluster, and its store."),
    "tier2": ("admin.repair.tier2_app", "Where a stopped data folder keeps its chunks."),
}


class _CliGroup(TyperGroup):
    """All commands. Its help is plain: it is asked for often, and the library that draws the others' takes a while."""

    def __init__(self, **given: Any) -> None:
        commands = _Commands({name: home for name, (home, _) in _COMMANDS.items()})
        super().__init__(**(given | {"commands": commands}))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])


app = typer.Typer(
    cls=_CliGroup, help="Streaming storage: keep streams, bookmark them, replay any slice.", no_args_is_help=True
)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"nadi {nadi.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print nadi's version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it is closed: else the first connection would be taken for it
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
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
    except KeyboardInterrupt:  # outside a command's own handler, or once more
        sys.exit(INTERRUPTED)
    except OSError as error:  # standard output that takes no more, say
        failure(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what it still holds
        sys.exit(1)


def _end(number: int, _: object) -> None:
    """Exit as on Ctrl-C: clean up, and report what is stored."""
    raise SystemExit(128 + number)


def _end_again(ignored: sys.UnraisableHookArgs) -> None:
    """Repeat soon an end that came while an object was deleted, where Python ignores it."""
    end = ignored.exc_value
    if not isinstance(end, SystemExit | KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return

    def repeat(_number: int, _frame: object) -> None:
        raise type(end)(*end.args)

    signal.signal(signal.SIGALRM, repeat)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


if __name__ == "__main__":
    main()
