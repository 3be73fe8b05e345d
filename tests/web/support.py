"""What tests of the page's events share: messages of a response, as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx


def messages(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """(kind, data) of each server-sent event."""
    assert response.status_code == 200, response.read()
    assert response.headers["content-type"].startswith("text/event-stream")
    kind = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


@contextmanager
def events_of(client: httpx.Client, path: str, **query: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a tail, or of what is played, one by one; the iterator ends with the stretch."""
    with client.stream("GET", path, params=query) as response:
        told = messages(response)
        assert next(told)[0] in ("batch", "end")

        def each() -> Iterator[dict[str, Any]]:
            for kind, batch in told:
                if kind == "end":
                    return
                assert kind == "batch", batch
                yield from batch["events"]

        yield each()


def played(client: httpx.Client, path: str, **query: Any) -> list[dict[str, Any]]:
    """All events of a stretch, as fast as they are played."""
    with client.stream("GET", path, params=query) as response:
        found: list[dict[str, Any]] = []
        for kind, batch in messages(response):
            if kind == "end":
                return found
            assert kind == "batch", batch
            found += batch["events"]
    raise AssertionError("it was broken off")


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"])
