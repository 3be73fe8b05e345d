"""A shop's invoice lines: those sold and those brought back, and which sales a return may belong to, plainly computed.

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
SHUFFLED_MS = 6 * 3_600_000  # tills send their lines late: they are stored so much out of order, at most
WRITTEN_MS = 6 * 3_600_000  # so much is written at once, and may be readable in one segment and not yet in another
WATERMARK_MS = DAY_MS  # no line comes so far behind the latest one: twice what it has to be
CLOSING = "closing"  # the customer of the line that is last in each stream

Pair = tuple[str, str | None]  # a return, and a sale that it may belong to: or None, as there is none


class Line(msgspec.Struct, frozen=True):
    """An item of an invoice, sold or brought back."""

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
    """The line of an event; msgspec's DecodeError if it is something else."""
    return msgspec.json.decode(event, type=Line)


def lines_of(file: Path) -> Iterator[Line]:
    """The lines of a packed file, in its order, which is that of time; corrections that are neither are left out."""
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
    """A sale and a return so late that all others are joined: a watermark goes no further than what it sees."""
    at = max(line.at for line in lines) + 2 * WATERMARK_MS
    return Line("last/1", CLOSING, "of the sales", at, 1), Line("Clast/1", CLOSING, "of the returns", at, 1)


def joined(sales: Iterable[Line], returns: Iterable[Line]) -> list[Pair]:
    """Each return with each sale of that item to that customer within the thirty days before; or with None."""
    sold: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for sale in sales:
        sold[sale.customer, sale.item].append(sale)
    pairs: list[Pair] = []
    for back in returns:
        if back.customer == CLOSING:
            continue
        earliest = back.at - RETURNED_WITHIN_MS
        found = [sale.id for sale in sold[back.customer, back.item] if earliest <= sale.at <= back.at]
        pairs += [(back.id, sale) for sale in found] or [(back.id, None)]
    return pairs
