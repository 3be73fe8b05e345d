"""HTTP for a fake S3: parsing of requests, and encoding of responses."""

from __future__ import annotations

from asyncio import StreamReader
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """The path after the bucket."""
        return self.path.lstrip("/").partition("/")[2]

    @property
    def kind(self) -> str:
        """The kind of request: put, get, list or delete."""
        if self.method == "DELETE" or (self.method == "POST" and "delete" in self.query):
            return "delete"
        if self.method == "GET" and not self.key:
            return "list"
        return {"PUT": "put", "GET": "get", "HEAD": "get"}.get(self.method, self.method)


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self, *, head: bool = False) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        headers = dict(self.headers)
        if self.status not in (204, 304):
            headers.setdefault("Content-Length", str(len(self.body)))
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if head else self.body)


def failed(status: int, code: str, message: str = "injected by the test", more: str = "") -> Answer:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


async def read_request(reader: StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    return Request(method, unquote(url.path), query, headers, body)
