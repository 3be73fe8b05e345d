"""The `nadi` command.

`up`, `check`, `repair`, `migrate`, `passwd`, `key` and `tier2` work on data folders, cluster stores, and files of users
and keys; all other commands are clients of a running server.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import UserDict
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import nadi
from nadi.cli.printing import INTERRUPTED, INVALID, failure, say

# Parameters that accept an empty text.
_MAY_BE_EMPTY = {"key", "secondary", "value", "prefix", "primary", "first", "last", "note", "grep"}


_NUMBERS = {  # names of types in the parser's errors, longest first
    "int range": "a whole number",
    "integer range": "a whole number",
    "integer": "a whole number",
    "int": "a whole number",
    "float range": "a number",
    "float": "a number",
}


class _CliCommand(TyperCommand):
    """A command that rejects empty text, which an unset shell variable expands to, and whose usage line has arguments
    in capitals, such as SCOPE."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = (piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx))
        return [re.sub(r"^\[?\w+", lambda name: name[0].upper(), piece) for piece in pieces]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values_by_name, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for param in self.params:
            value = values_by_name.get(param.name or "")
            texts = value if isinstance(value, list | tuple) else [value]
            if "" in texts and param.default != "" and param.name not in _MAY_BE_EMPTY:
                problem = "the value is empty: check for an unset shell variable"
                raise typer.BadParameter(problem, ctx=ctx, param=param)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            for kind, words in _NUMBERS.items():
                error.message = error.message.replace(f"is not a valid {kind}", f"is not {words}")
            raise


class _Commands(UserDict[str, Any]):
    """Commands by name. Looking one up imports and builds it, so no command loads another command's modules."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(home := self.data[name], str):
            self.data[name] = _built(name, home)
        return self.data[name]


def _built(name: str, home: str) -> Any:
    """Build a command or a group from its function or Typer."""
    module, _, attribute = home.rpartition(".")
    target = getattr(import_module(f"nadi.cli.{module}"), attribute)
    parent = typer.Typer(add_completion=False, callback=lambda: None)  # a callback makes it a group
    if isinstance(target, typer.Typer):
        parent.add_typer(target, name=name, help=_COMMANDS[name][1])
    else:
        parent.command(name)(target)
    _prepare(parent)
    return typer.main.get_command(parent).commands[name]  # type: ignore[attr-defined]


def _prepare(commands: typer.Typer) -> None:
    from nadi.cli.session import prepared

    for command in commands.registered_commands:
        assert command.callback is not None, "every command has a function"
        command.cls, command.callback = _CliCommand, prepared(command.callback)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _prepare(group.typer_instance)


# In the order of the help, which describes them without importing them.
_COMMANDS = {
    "up": ("admin.up.up", "Start a server."),
    "kafka": ("kafka.kafka", "Serve streams to Kafka clients."),
    "check": ("admin.repair.check", "Check a stopped data folder for damage."),
    "repair": ("admin.repair.repair", "Repair a damaged data folder."),
    "migrate": ("admin.migrate.migrate", "Move all data to a new data folder or cluster store."),
    "passwd": ("admin.passwd.passwd", "Add, change or remove a user in a users file."),
    "key": ("admin.keys.key_app", "Manage the keys of encrypted stores."),
    "scrub": ("scrub.scrub", "Make the server verify all stored data."),
    "doctor": ("doctor.doctor", "Diagnose this machine, the disk and the server."),
    "write": ("events.write.write", "Write events from standard input or files."),
    "read": ("events.read.read", "Print the events of a stream, slice or split."),
    "tail": ("events.read.tail", "Print the last events of a stream and follow it."),
    "splits": ("events.read.splits", "Divide a range of a stream into splits."),
    "sql": ("sql.command.sql", "Query streams with SQL."),
    "export": ("files.export", "Export a range of a stream to a file."),
    "import": ("files.import_file", "Import the events of a file into a stream."),
    "scope": ("streams.scope_app", "Manage scopes, the namespaces of streams."),
    "stream": ("streams.stream_app", "Manage streams, their segments, scaling and retention."),
    "bookmark": ("bookmarks.bookmark_app", "Manage bookmarks, which name stream cuts."),
    "slice": ("bookmarks.slice_app", "Manage slices, which name the events between two cuts."),
    "group": ("groups.group_app", "Manage reader groups, their lag and checkpoints."),
    "table": ("tables.table_app", "Manage key-value tables and their entries."),
    "stream-table": ("stream_tables.stream_table_app", "Manage stream tables, which read streams as tables."),
    "transaction": ("transactions.transaction_app", "Manage transactions."),
    "function": ("functions.function_app", "Run and manage functions triggered by streams."),
    "processor": ("functions.processor_app", "Manage processors, programs that use `nadi.process`."),
    "lake": ("lake.lake_app", "Run and manage Iceberg tables that follow streams."),
    "search": ("search.search_app", "Run and manage full-text search and standing queries."),
    "spark": ("spark.commands.spark_app", "List Spark options, manage mirrored checkpoints."),
    "quota": ("quotas.quota_app", "Manage quotas, which limit scopes and users."),
    "cluster": ("cluster.commands.cluster_app", "Manage a cluster's servers and store."),
    "tier2": ("admin.repair.tier2_app", "Manage where a stopped data folder keeps its chunks."),
}


class _CliGroup(TyperGroup):
    """The top-level group. Its help is plain text, because the library that draws the other helps loads slowly."""

    def __init__(self, **attributes: Any) -> None:
        commands = _Commands({name: home for name, (home, _) in _COMMANDS.items()})
        super().__init__(**(attributes | {"commands": commands}))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])


app = typer.Typer(
    cls=_CliGroup, help="Streaming storage: store streams, bookmark them, replay any slice.", no_args_is_help=True
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        say(f"nadi {nadi.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed: the first connection would get its descriptor
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, _end)
    sys.unraisablehook = _end_again
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors report what matters
    try:
        import nadi.limits  # noqa: F401 - imported here because it raises if NADI_LIMITS is invalid
    except ValueError as error:
        failure(error)
        sys.exit(INVALID)
    try:
        app()
    except KeyboardInterrupt:  # outside a command's handler, or pressed twice
        sys.exit(INTERRUPTED)
    except OSError as error:  # such as a full disk under standard output
        failure(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards the buffered rest
        sys.exit(1)


def _end(number: int, _: object) -> None:
    """Exit as on Ctrl-C: clean up and report what is stored."""
    raise SystemExit(128 + number)


def _end_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an exit again that arrived while an object was being deleted, where Python ignores exceptions."""
    end = unraisable.exc_value
    if not isinstance(end, SystemExit | KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return

    def repeat(_number: int, _frame: object) -> None:
        raise type(end)(*end.args)

    signal.signal(signal.SIGALRM, repeat)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


if __name__ == "__main__":
    main()
