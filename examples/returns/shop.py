"""A shop's invoice lines, sold and returned, and the sales that a return may belong to, by plain computation.

The file has a line for each item of an invoice; invoices of returns begin with a C and their quantities are negative.
Times have no zone and are read as UTC.

>>> line = Line("C521012/1", "14775", "22423", 1283940000000, 2)
>>> read(line.event()) == line
True
"""

from __future__ import annotations

import csv
import lzma
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

DAY_MS = 24 * 3_600_000
RETURNED_WITHIN_MS = 30 * DAY_MS
SHUFFLED_MS = 6 * 3_600_000  # tills send their lines late: the maximum disorder of stored lines
WRITTEN_MS = 6 * 3_600_000  # written at once, so possibly readable in one segment before another
WATERMARK_MS = DAY_MS  # no line is that far behind the latest one: twice the necessary value
CLOSING = "closing"  # the customer of the last line of each stream

Pair = tuple[str, str | None]  # a return, and a sale that it may belong to, or None


class Line(msgspec.Struct, frozen=True):
    """An item of an invoice, sold or returned."""

    id: str  # the invoice and a number, such as C521012/1
    customer: str
    item: str
    at: int  # ms since 1970
    quantity: int  # more than 0, for returns, too

    def event(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def is_return(self) -> bool:
        return self.id.startswith("C")


def read(event: bytes) -> Line:
    """Parse an event; msgspec's DecodeError if it isn't a line."""
    return msgspec.json.decode(event, type=Line)


def lines_of(file: Path) -> Iterator[Line]:
    """Yield the lines of a compressed file, in the order of time; corrections are omitted."""
    numbers: dict[str, int] = defaultdict(int)
    with lzma.open(file, "rt", encoding="utf-8", newline="") as text:
        for row in csv.DictReader(text):
            invoice, quantity = row["Invoice"], int(row["Quantity"])
            if (quantity < 0) != invoice.startswith("C") or quantity == 0:
                continue
            numbers[invoice] += 1
            at = datetime.strptime(row["InvoiceDate"], "%m/%d/%Y %H:%M").replace(tzinfo=UTC)
            customer = str(int(float(row["Customer ID"])))
            yield Line(
                f"{invoice}/{numbers[invoice]}",
                customer,
                row["StockCode"],
                int(at.timestamp()) * 1000,
                abs(quantity),
            )


def closing(lines: Iterable[Line]) -> tuple[Line, Line]:
    """Return a sale and a return so late that all others are joined: a watermark follows the events it sees."""
    at = max(line.at for line in lines) + 2 * WATERMARK_MS
    return Line("last/1", CLOSING, "of the sales", at, 1), Line("Clast/1", CLOSING, "of the returns", at, 1)


def joined(sales: Iterable[Line], returns: Iterable[Line]) -> list[Pair]:
    """Return each return with each sale of that item to that customer within the thirty days before; or with None."""
    sold: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for sale in sales:
        sold[sale.customer, sale.item].append(sale)
    pairs: list[Pair] = []
    for back in returns:
        if back.customer == CLOSING:
            continue
        earliest = back.at - RETURNED_WITHIN_MS
        matches = [sale.id for sale in sold[back.customer, back.item] if earliest <= sale.at <= back.at]
        pairs += [(back.id, sale) for sale in matches] or [(back.id, None)]
    return pairs
