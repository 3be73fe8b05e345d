"""`nadi sql`: query streams with DuckDB."""

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
        typer.Argument(
            help="Query, such as \"select meter, max(wh) from home.meters for slice 'monday' group by meter\"."
        ),
    ],
    scope: Annotated[str | None, typer.Option(help="Default scope of streams.")] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM=FIELDS",
            help="Fields of a stream's JSON events if it doesn't have a schema: 'home.meters=meter string, wh double'.",
        ),
    ] = None,
    form: Form = Form.TABLE,
) -> None:
    """Query streams with SQL. A query reads the events that exist when it begins."""
    check_installed()
    import duckdb

    from nadi.cli.sql.query import make_views, rewrite_query
    from nadi.cli.sql.rows import run_and_print

    schemas = dict(map(_fields, schema or ()))
    rewritten, references = rewrite_query(query)
    with duckdb.connect() as con:
        errors = make_views(manager, con, references, scope, schemas)
        try:
            run_and_print(con, rewritten, form)
        except duckdb.Error as error:
            if errors:
                raise errors[0] from error
            raise InvalidArgumentError(_error_text(error, query, rewritten)) from error


def check_installed() -> None:
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("nadi sql requires DuckDB: pip install 'nadi[sql]'") from None


def _fields(text: str) -> tuple[str, str]:
    name, equals, fields = text.partition("=")
    if not equals or not name.strip() or not fields.strip():
        raise InvalidArgumentError(
            f"--schema {text[:60]!r} doesn't name fields: use 'home.meters=meter string, wh double'"
        )
    return name.strip(), fields.strip()


def _error_text(error: Exception, query: str, rewritten: str) -> str:
    text = str(error)
    if "Table with name" in text and "does not exist" in text:
        text = text.partition("\n")[0] + " Name streams as scope.stream, or add --scope"
    return text if query == rewritten else f"{text}\nThe query was run as: {rewritten}"
