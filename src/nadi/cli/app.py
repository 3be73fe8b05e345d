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

from nadi import __version__
from nadi.cli.printing import failure, say

# Also what is empty by default.
_MAY_BE_EMPTY = {"key", "secondary", "value", "prefix", "primary", "first", "last", "note", "grep"}


class _Command(TyperCommand):
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
        if isinstance(command := self.data[name], str):
            command = self.data[name] = _built(name, command)
        return command


def _built(name: str, home: str) -> Any:
    """A command, or a group of them, from its function or Typer."""
    module, _, attribute = home.rpartition(".")
    found = getattr(import_module(f"nadi.cli.{module}"), attribute)
    one = typer.Typer(add_completion=False, callback=lambda: None)  # with a callback it is a group in any case
    if isinstance(found, typer.Typer):
        one.add_typer(found, name=name)
    else:
        one.command(name)(found)
    _refuse_empty_text(one)
    return typer.main.get_command(one).commands[name]  # type: ignore[attr-defined]


def _refuse_empty_text(commands: typer.Typer) -> None:
    for command in commands.registered_commands:
        command.cls = _Command
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _refuse_empty_text(group.typer_instance)


class _Group(TyperGroup):
    """All commands, in the order of the help."""

    def __init__(self, **given: Any) -> None:
        commands = _Commands(
            {
                "up": "admin.up.up",
                "check": "admin.repair.check",
                "repair": "admin.repair.repair",
                "migrate": "admin.migrate.migrate",
                "passwd": "admin.passwd.passwd",
                "scrub": "scrub.scrub",
                "doctor": "doctor.doctor",
                "write": "events.write.write",
                "read": "events.read.read",
                "tail": "events.tail.tail",
                "splits": "events.splits.splits",
                "read-split": "events.splits.read_split",
                "sql": "sql.command.sql",
                "export": "files.importing.export",
                "import": "files.importing.import_file",
                "scope": "streams.scope_app",
                "stream": "streams.stream_app",
                "bookmark": "bookmarks.bookmark_app",
                "slice": "bookmarks.slice_app",
                "group": "groups.group_app",
                "table": "tables.table_app",
                "stream-table": "stream_tables.stream_table_app",
                "txn": "transactions.txn_app",
                "function": "following.functions.function_app",
                "lake": "following.lake.lake_app",
                "search": "search.indexes.search_app",
                "spark": "spark.commands.spark_app",
                "cluster": "cluster.commands.cluster_app",
                "tier2": "admin.tier2.tier2_app",
            }
        )
        super().__init__(**(given | {"commands": commands}))


app = typer.Typer(
    cls=_Group, help="Streaming storage: keep streams, bookmark them, replay any slice.", no_args_is_help=True
)


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
