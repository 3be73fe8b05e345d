"""The server of a fake S3: requests, injected faults, and S3's responses."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from asyncio import StreamReader, StreamWriter
from collections import Counter
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape, unescape

from tests.support.fake_s3.faults import Faults
from tests.support.fake_s3.objects import Object, Objects
from tests.support.fake_s3.requests import Answer, Request, failed, read_request

BUCKET = "bucket"
_LONGEST_HEAD = 64 * 1024
_XML = {"Content-Type": "application/xml"}
_DATE = "Sun, 22 Nov 2026 00:00:00 GMT"


class FakeS3:
    """A fake S3. faults: may be changed at any time. counts: requests by put, get, list and delete."""

    def __init__(self, folder: Path | None = None, faults: Faults | None = None, port: int = 0) -> None:
        self.faults = faults or Faults()
        self.objects = Objects(folder)
        self.counts: Counter[str] = Counter()
        self.endpoint = ""
        self._puts: Counter[str] = Counter()
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[Answer]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port, limit=_LONGEST_HEAD)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        tasks = [*self._connections, *self._late]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def config(self) -> dict[str, str]:
        """The client configuration for `s3://bucket/…`."""
        return {"endpoint": self.endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}

    def _accepted(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                while True:
                    request = await read_request(reader)
                    answer = await self._answer(request)
                    if answer is None:
                        break
                    writer.write(answer.encoded(head=request.method == "HEAD"))
                    await writer.drain()
            finally:
                writer.close()

    async def _answer(self, request: Request) -> Answer | None:
        """Return the response; None breaks the connection."""
        if request.path == "/-/faults":
            self.faults.update(**json.loads(request.body))
            return Answer(204)
        if request.path == "/-/counts":
            return Answer(200, json.dumps(self.counts).encode())
        kind, faults = request.kind, self.faults
        self.counts[kind] += 1
        await asyncio.sleep(faults.pause_s(kind))
        refused = self._refusal(request)
        if refused is not None:
            return refused
        if faults.hits(faults.lost_requests):
            return None
        if kind == "put" and faults.hits(faults.late_puts):
            task = asyncio.ensure_future(self._put_later(request))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return None
        answer = await getattr(self, f"_{kind}")(request)
        assert isinstance(answer, Answer)
        return None if faults.hits(faults.lost_answers) else answer

    def _refusal(self, request: Request) -> Answer | None:
        faults, kind = self.faults, request.kind
        if request.path.lstrip("/").partition("/")[0] != BUCKET:
            return failed(404, "NoSuchBucket")
        if faults.expired:
            token = escape(request.headers.get("x-amz-security-token", ""))
            return failed(400, "ExpiredToken", "The provided token has expired.", f"<Token-0>{token}</Token-0>")
        if kind in faults.denied:
            return failed(403, "AccessDenied", "Access Denied")
        if faults.hits(faults.slow_down):
            return failed(503, "SlowDown", "Please reduce your request rate.")
        if kind == "put" and faults.hits(faults.conflict):
            return failed(409, "ConditionalRequestConflict")
        return None

    async def _put_later(self, request: Request) -> Answer:
        await asyncio.sleep(self.faults.lateness_s())
        return await self._put(request)

    async def _put(self, request: Request) -> Answer:
        headers, ignored = request.headers, self.faults.ignored
        if self.faults.locked and request.key in self.objects.now and "if-none-match" not in headers:
            return failed(403, "AccessDenied", "object is locked")
        self._puts[request.key] += 1
        if self._puts[request.key] > self.faults.kept_times:
            ignored = ["create", "match"]
        generation = headers.get("x-goog-if-generation-match")
        stored = await self.objects.put(
            request.key,
            request.body,
            absent=headers.get("if-none-match") == "*" and "create" not in ignored,
            etag=self._condition(headers.get("if-match"), ignored),
            generation=None if generation is None else int(generation),
        )
        if isinstance(stored, int):
            return failed(stored, "PreconditionFailed" if stored == 412 else "NoSuchKey")
        return Answer(200, b"", self._headers(stored))

    def _condition(self, etag: str | None, ignored: list[str]) -> str | None:
        if etag is None or "match" in ignored:
            return None
        return "another" if self.faults.etags_wrong else etag

    def _headers(self, stored: Object) -> dict[str, str]:
        headers = {"ETag": stored.etag, "x-goog-generation": str(stored.generation), "Last-Modified": _DATE}
        if self.faults.versioned:
            headers["x-amz-version-id"] = f"v{stored.generation}"
        return headers

    async def _get(self, request: Request) -> Answer:
        stored = self.objects.as_of(self.faults.stale_gets_s).get(request.key)
        if stored is None:
            return failed(404, "NoSuchKey")
        headers, size = self._headers(stored), len(stored.body)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if asked is None:
            return Answer(200, stored.body, headers | {"Content-Length": str(size)})
        first, last = int(asked[1]), min(int(asked[2] or size), size - 1)
        if first >= size:
            return failed(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return Answer(206, stored.body[first : last + 1], headers)

    async def _delete(self, request: Request) -> Answer:
        if request.method == "DELETE":
            if self.faults.locked:
                return failed(403, "AccessDenied", "object is locked")
            await self.objects.delete(request.key)
            return Answer(204)
        parts = []
        for key in re.findall(r"<Key>(.*?)</Key>", request.body.decode()):
            if self.faults.locked:
                parts.append(
                    f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>object is locked</Message></Error>"
                )
            else:
                await self.objects.delete(unescape(key))
                parts.append(f"<Deleted><Key>{key}</Key></Deleted>")
        return Answer(200, f"<?xml version='1.0'?><DeleteResult>{''.join(parts)}</DeleteResult>".encode(), _XML)

    async def _list(self, request: Request) -> Answer:
        prefix, after = request.query.get("prefix", ""), request.query.get("continuation-token", "")
        objects = self.objects.as_of(self.faults.lists_late_s)
        place = _scattered if self.faults.lists_unordered else str
        keys = sorted((key for key in objects if key.startswith(prefix) and place(key) > after), key=place)
        page, more = keys[: self.faults.page], len(keys) > self.faults.page
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-22T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(objects[key].etag)}</ETag><Size>{len(objects[key].body)}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(place(page[-1]))}</NextContinuationToken>" if more else ""
        text = (
            f"<?xml version='1.0'?><ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        )
        return Answer(200, text.encode(), _XML)


def _scattered(key: str) -> str:
    return hashlib.md5(key.encode()).hexdigest()
