"""What a query's text says, before anybody knows which fields there are. `field` is None where none is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Everything:
    """`*`: all events."""


@dataclass(frozen=True, slots=True)
class Term:
    """`timeout`, `level:error`."""

    field: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Phrase:
    """`"connection reset"`: these words, one after the other."""

    field: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Near:
    """`"crown king"~5`: both words, the one at most so many words before or behind the other."""

    field: str | None
    text: str
    apart: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """`time*`: words that begin so."""

    field: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """`ms:[10 TO 20}`, `ms:>10`; None is no bound."""

    field: str
    low: str | None
    high: str | None
    with_low: bool = True
    with_high: bool = True


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


Node: TypeAlias = Everything | Term | Phrase | Near | Prefix | Range | And | Or | Not


@dataclass(frozen=True, slots=True)
class Parsed:
    """since, until: the stream cuts between which events are asked for, as `StreamCuts.named` takes them."""

    node: Node
    since: str | None = None
    until: str | None = None
