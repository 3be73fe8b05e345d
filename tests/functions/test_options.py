"""A function's options are checked when it is defined."""

from __future__ import annotations

from typing import Any

import pytest

from nadi.errors import InvalidArgumentError
from nadi.functions import Event, Function


def handler(event: Event) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stream", None), ("name", 5), ("start", 5), ("min_workers", "1"), ("max_workers", None),
        ("idle_s", "x"), ("batch_events", 1.5), ("batch_ms", None), ("by_batch", "x"), ("timeout_s", None),
        ("memory_mib", "x"), ("retries", True), ("retry_first_s", "1"), ("dead_letters", 5), ("output", 5),
        ("delivery", "x"), ("key_field", 5), ("skip_damage", "x"),
    ],
)  # fmt: skip
def test_an_option_of_another_type_is_refused_by_its_name(option: str, value: Any) -> None:
    good: dict[str, Any] = {"scope": "home", "stream": "meters", "handler": handler}
    with pytest.raises(InvalidArgumentError, match="starts at the head" if option == "start" else option):
        Function(**good | {option: value})
    assert Function(**good).changed(retries=2).retries == 2


@pytest.mark.parametrize("path", ["", "a..b", r"a\.b", "$.a", "a['b']"])
def test_key_field_that_is_not_a_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^key_field .* is not a field: "):
        Function(scope="home", stream="meters", handler=handler, key_field=path)
