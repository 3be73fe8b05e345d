"""`nadi sql`: a query of streams, by DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.printing import Form
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager


def sql(
    manager: StreamManager,
    query: Annotated[
        str,
        typer.Argument(help="Such as \"select meter, max(wh) from home.meters for slice 'monday' group by meter\"."),
    ],
    scope: Annotated[str | None, typer.Option(help="The scope of streams that are named without one.")] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM=FIELDS",
            help="Fields of a stream's JSON events, where it has no schema: 'home.meters=meter string, wh double'.",
        ),
    ] = None,
    form: Form = Form.TABLE,
) -> None:
    """Query streams by SQL, as they are when the query begins."""
    check_installed()
    import duckdb

    from nadi.cli.sql.query import make_views, stretches
    from nadi.cli.sql.rows import run_and_print

    given = dict(map(_fields, schema or ()))
    rewritten, asked = stretches(query)
    with duckdb.connect() as con:
        errors = make_views(manager, con, asked, scope, given)
        try:
            run_and_print(con, rewritten, form)
        except duckdb.Error as error:
            if errors:
                raise errors[0] from error
            raise InvalidArgumentError(_in_words(error, query, rewritten)) from error


def check_installed() -> None:
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("queries need DuckDB: pip install 'nadi[sql]'") from None


def _fields(text: str) -> tuple[str, str]:
    name, equals, fields = text.partition("=")
    if not equals or not name.strip() or not fields.strip():
        raise InvalidArgumentError(
            f"--schema {text[:60]!r} names no fields: write it as 'home.meters=meter string, wh double'"
        )
    return name.strip(), fields.strip()


def _in_words(error: Exception, query: str, rewritten: str) -> str:
    text = str(error)
    if "Table with name" in text and "does not exist" in text:
        text = text.partition("\n")[0] + " Write streams as scope.stream, or give --scope"
    return text if query == rewritten else f"{text}\nThe query is run as: {rewritten}"
