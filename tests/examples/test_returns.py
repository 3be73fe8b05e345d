"""The shop's lines as parsed, written and joined, and a checker that detects each kind of fault."""

import json
import lzma
from pathlib import Path

from examples.returns.checker import compare
from examples.returns.extract import EXTRACT, extract
from examples.returns.producer import pieces, shuffled, some_lines
from examples.returns.shop import (
    CLOSING,
    DAY_MS,
    RETURNED_WITHIN_MS,
    WATERMARK_MS,
    Line,
    closing,
    joined,
    lines_of,
    read,
)


def test_the_extract_holds_known_lines() -> None:
    lines = list(lines_of(EXTRACT))
    assert (len(lines), sum(line.is_return for line in lines)) == (29_790, 562)
    assert len({line.id for line in lines}) == len(lines)
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    pairs = joined([one for one in lines if not one.is_return], [one for one in lines if one.is_return])
    assert (len(pairs), sum(sale is None for _, sale in pairs)) == (646, 209)


def test_lines_read_back_equal() -> None:
    for line in some_lines(500):
        assert read(line.event()) == line


def test_no_line_is_late_wherever_a_batch_ends() -> None:
    """Within a range, any lines may be readable before any others."""
    lines = some_lines()
    latest = 0
    for number, piece in enumerate(pieces(lines)):
        latest_with_it = max(latest, *(line.at for line in piece))
        assert min(line.at for line in piece) > latest_with_it - WATERMARK_MS, number
        latest = latest_with_it
    assert [line.customer for line in piece] == [CLOSING] * 2, "what closes the streams comes when all else is stored"
    assert sum(map(len, pieces(lines))) == len(lines)
    assert shuffled(lines) != lines


def line(number: int, at: int, *, back: bool = False, customer: str = "1", item: str = "tea") -> Line:
    return Line(f"{'C' * back}{number}/1", customer, item, at, 1)


def test_a_return_has_all_sales_of_thirty_days_or_none() -> None:
    at = 100 * DAY_MS
    sales = [
        line(1, at - RETURNED_WITHIN_MS - 1),
        line(2, at - RETURNED_WITHIN_MS),
        line(3, at),
        line(4, at + 1),
        line(5, at, customer="2"),
        line(6, at, item="cup"),
    ]
    assert joined(sales, [line(9, at, back=True)]) == [("C9/1", "2/1"), ("C9/1", "3/1")]
    assert joined(sales, [line(9, 0, back=True)]) == [("C9/1", None)]
    assert joined(sales, [closing(sales)[1]]) == []


def test_checker_detects_each_fault() -> None:
    lines = some_lines()
    sales = [line.event() for line in lines if not line.is_return]
    returns = [line.event() for line in lines if line.is_return]
    pairs = joined(map(read, sales), map(read, returns))
    right = [json.dumps({"back": back, "sale": sale}).encode() for back, sale in pairs]
    verdict = compare(sales, returns, right)
    assert verdict.is_right
    assert (verdict.returns, verdict.matched, verdict.pairs, round(verdict.days, 1)) == (562, 353, 646, 7.4)
    for wrong, faults in (
        (right[1:], (1, 0, 0)),
        ([*right, b'{"back": "C1/1", "sale": null}'], (0, 1, 0)),
        ([*right, right[5]], (0, 0, 1)),
    ):
        verdict = compare(sales, returns, wrong)
        assert (verdict.missing, verdict.surplus, verdict.twice) == faults
        assert not verdict.is_right
    assert not compare([], [], []).is_right, "empty results prove nothing"


def test_extracting_keeps_a_fifth_of_the_customers(tmp_path: Path) -> None:
    whole = (
        "Invoice,StockCode,Description,Quantity,InvoiceDate,Price,Customer ID,Country\n"
        "1,A,a,1,8/31/2010 23:59,1.0,10.0,UK\n"
        '2,B,"b, c",2,9/1/2010 0:01,2.0,10.0,UK\n'
        "2,C,c,3,9/1/2010 0:01,3.0,11.0,UK\n"
        "3,C,c,3,9/1/2010 0:02,3.0,,UK\n"
        "C4,B,b,-2,11/30/2010 9:00,2.0,10.0,UK\n"
        "5,B,b,-2,11/30/2010 9:01,0,10.0,UK\n"
    )
    packed = extract(lzma.compress(whole.encode()))
    (tmp_path / "file").write_bytes(packed)
    assert lzma.decompress(packed).decode() == (
        "Invoice,StockCode,Quantity,InvoiceDate,Price,Customer ID\n"
        "2,B,2,9/1/2010 0:01,2.0,10.0\n"
        "C4,B,-2,11/30/2010 9:00,2.0,10.0\n"
        "5,B,-2,11/30/2010 9:01,0,10.0\n"
    )
    assert [line.id for line in lines_of(tmp_path / "file")] == ["2/1", "C4/1"], "corrections are neither"
