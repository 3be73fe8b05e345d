"""Helpers for tests of the page's events: messages of a streaming response."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx


def messages(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Yield (kind, data) of each server-sent event."""
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
    """Iterate over the events of a tail or replay; ends with its range."""
    with client.stream("GET", path, params=query) as response:
        received = messages(response)
        assert next(received)[0] in ("batch", "end")

        def each() -> Iterator[dict[str, Any]]:
            for kind, batch in received:
                if kind == "end":
                    return
                assert kind == "batch", batch
                yield from batch["events"]

        yield each()


def played(client: httpx.Client, path: str, **query: Any) -> list[dict[str, Any]]:
    """Replay a range and return all its events."""
    with client.stream("GET", path, params=query) as response:
        events: list[dict[str, Any]] = []
        for kind, batch in messages(response):
            if kind == "end":
                return events
            assert kind == "batch", batch
            events += batch["events"]
    raise AssertionError("the response was interrupted")


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"])
