"""What tantivy is asked for in one way everywhere: how a text becomes words, and the schema of an index's shards.

A word is a run of letters and digits, in lower case. The same analyzer makes an event's words, a query's, and those
that standing queries are matched with. Fields are numbered: `f0`, `f1` …, so that any name may be one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_TOKEN_BYTES
from nadi.search.fields import TIMES, Field

if TYPE_CHECKING:
    from tantivy import Facet, Index, Schema, TextAnalyzer

ORDER, SEGMENT, OFFSET, SIZE = "_order", "_segment", "_offset", "_size"
_ANALYZER = "nadi"
ORDER_BITS = 8  # of an order, below the microseconds: the segment's number


def check_installed() -> None:
    """InvalidArgumentError where tantivy isn't."""
    try:
        import tantivy  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("search needs the package tantivy: pip install 'nadi[search]'") from None


@cache
def analyzer() -> TextAnalyzer:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    builder = TextAnalyzerBuilder(Tokenizer.simple())
    return builder.filter(Filter.remove_long(SEARCH_TOKEN_BYTES)).filter(Filter.lowercase()).build()


def words_in(text: str) -> list[str]:
    """The words of a text, in order: of `GET /Index.html`, get, index and html."""
    found: list[str] = analyzer().analyze(text)
    return found


@cache
def schema_of(fields: tuple[Field, ...]) -> Schema:
    """Of each event the shards know where it is, and the order in which it came; and its fields, without their
    texts."""
    from tantivy import SchemaBuilder

    builder = SchemaBuilder()
    for name in (ORDER, SEGMENT, OFFSET, SIZE):
        builder.add_unsigned_field(name, fast=True)
    for number, field in enumerate(fields):
        name = name_of(number)
        if field.kind == "text":
            builder.add_text_field(name, tokenizer_name=_ANALYZER)
        elif field.kind == "keyword":
            builder.add_text_field(name, tokenizer_name="raw", index_option="basic", fast=True)
        elif field.kind == "long" or field.kind in TIMES:
            builder.add_integer_field(name, indexed=True, fast=True)
        elif field.kind == "double":
            builder.add_float_field(name, indexed=True, fast=True)
        elif field.kind == "bool":
            builder.add_boolean_field(name, indexed=True, fast=True)
        else:
            builder.add_facet_field(name)
    return builder.build()


def facet_of(path: str) -> Facet:
    """A facet's path as events have it: to tantivy a backslash makes the next character plain."""
    from tantivy import Facet

    return Facet.from_string(path.replace("\\", "\\\\"))


def name_of(number: int) -> str:
    """What tantivy calls a field."""
    return f"f{number}"


def prepared(index: Index) -> Index:
    """The index with our analyzer."""
    index.register_tokenizer(_ANALYZER, analyzer())
    return index
