"""Names of scopes, streams and segments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidArgumentError, InvalidNameError
from nadi.naming import (
    INDEX_SUFFIX,
    check_name,
    container_key,
    parse_segment_name,
    segment_epoch,
    segment_id,
    segment_name,
    segment_number,
    transaction_segment_name,
)

halves = st.integers(0, 2**31 - 1)


@given(halves, halves)
def test_segment_names_and_ids_read_back(number: int, epoch: int) -> None:
    one = segment_id(number, epoch)
    assert (segment_number(one), segment_epoch(one)) == (number, epoch)
    name = segment_name("sc", "st", one)
    assert name == f"sc/st/{number}.#epoch.{epoch}"
    assert parse_segment_name(name) == ("sc", "st", one)


def test_a_name_without_an_epoch_has_epoch_0() -> None:
    assert parse_segment_name("a/b/7") == ("a", "b", 7)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "a/b/c",
        "a/b/1/2",
        "//1",
        "a/b/-1",
        "a/b/²",
        "a/b/١",
        "a/b/1\n",
        "a/b/1.#epoch.",
        "a/b/1.#epoch.x",
        "a/b/2147483648",
        "a/b/0.#epoch.2147483648",
        "a/b/0.#epoch.0#transaction.00000000000000010000000000000002",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_segment_name(name)


def test_a_transactions_segment() -> None:
    assert transaction_segment_name("a/b/0.#epoch.0", (1 << 64) | 2) == (
        "a/b/0.#epoch.0#transaction.00000000000000010000000000000002"
    )
    assert len(transaction_segment_name("s", 2**128 - 1)) == len("s#transaction.") + 32


def test_parts_of_a_segment_share_its_container() -> None:
    name = segment_name("a", "b", segment_id(3, 5))
    related = [
        segment_name("a", "b", 3),
        transaction_segment_name(name, 99),
        f"{name}#transient.{1:032x}.{2:032x}",
        name + INDEX_SUFFIX,
    ]
    assert {container_key(one) for one in [name, *related]} == {"a/b/3"}


@pytest.mark.parametrize("name", ["a", "A-z.0", "x" * 255])
def test_good_names(name: str) -> None:
    assert check_name("scope", name) == name


@pytest.mark.parametrize("name", ["", "a/b", "a b", "_a", "a_b", "é", "a\n", "x" * 256, "a#b", "a:b"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_name("scope", name)


def test_internal_names_may_begin_with_an_underscore() -> None:
    assert check_name("stream", "_MARKmeters", internal=True) == "_MARKmeters"
    with pytest.raises(InvalidNameError):
        check_name("stream", "__two", internal=True)
