"""`nadi spark options`: what `format("nadi")` and `format("pravega")` may be given."""

from __future__ import annotations

from typing import Annotated

import typer

from nadi.cli.printing import say, show
from nadi.cli.session import AsJson
from nadi.errors import InvalidArgumentError

spark_app = typer.Typer(help="Streams in Spark.", no_args_is_help=True)


@spark_app.callback()
def of_spark() -> None:
    pass


@spark_app.command("options")
def show_options(
    name: Annotated[str, typer.Option("--format", help="nadi or pravega: defaults differ.")] = "nadi",
    use: Annotated[str | None, typer.Option(help="Only those of read, readStream, write or writeStream.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the guide, for both formats.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the options of Spark's reads and writes: where each has an effect, its default, its meaning."""
    from nadi.cli.printing import errors_told
    from nadi.spark.options.table import OPTIONS, Format, default_in, uses_text
    from nadi.spark.options.table import markdown as as_markdown

    with errors_told():
        if markdown:
            if use is not None or as_json:
                raise InvalidArgumentError("--markdown is all there is: leave out --use and --json")
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
        show(rows, ["option", "in", "default", "meaning"], as_json=as_json, empty="")
