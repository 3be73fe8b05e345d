"""All names of the package exist although they are imported on first access."""

from __future__ import annotations

import subprocess
import sys

import pytest

import nadi


def test_all_names_are_listed_and_importable() -> None:
    assert set(nadi.__all__) <= set(dir(nadi))
    for name in nadi.__all__:
        assert getattr(nadi, name).__name__.rpartition(".")[2] == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="StreamManger"):
        nadi.StreamManger  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("first", ["nadi.standalone.embedded", "nadi.standalone.server", "nadi.testing"])
def test_embedded_is_the_function_whatever_was_imported_before(first: str) -> None:
    # a module of the same name becomes an attribute of its package when it is imported
    script = (
        f"import {first}, nadi, nadi.standalone as it\nassert callable(nadi.embedded) and callable(it.embedded)\n"
        "from nadi.standalone.server import Server\nServer(it.ServerConfig(data='x'))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
