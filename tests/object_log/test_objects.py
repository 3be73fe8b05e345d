"""An object store as engine and registry, where it differs: network faults, and error messages without secrets."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable

import pytest

from nadi.errors import InvalidArgumentError, NadiError, StorageFullError, UnavailableError
from nadi.object_log.engine import LogEngine, Registry
from nadi.object_log.failures import RefusedError, public_error, without_secrets
from nadi.object_log.objects import ObjectEngine
from nadi.object_log.opening import open_engines
from nadi.object_log.urls import folder_of, remote_store
from nadi.runtime import REAL
from tests.support.fake_s3 import FakeS3
from tests.support.fake_s3.requests import Answer, Request
from tests.support.waiting import until_async

SECRET, TOKEN = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY", "AQoDYXdzEPT-session-token-EXAMPLE"
KEY_ID = "AKIAIOSFODNN7EXAMPLE"
NAME = "log/0/1/1"


@pytest.fixture
async def s3() -> AsyncIterator[FakeS3]:
    async with FakeS3() as server:
        yield server


async def opened(s3: FakeS3, bucket: str = "bucket", **config: str) -> tuple[LogEngine, Registry]:
    return await open_engines(f"s3://{bucket}/p", REAL, **(s3.config() | config))


async def test_unanswered_put_is_stored_though_unknown(s3: FakeS3) -> None:
    engine, registry = await opened(s3)
    s3.faults.lost_answers = 1.0
    with pytest.raises(UnavailableError, match="log/0/1/1"):
        await engine.create(NAME, [b"x"])
    with pytest.raises(UnavailableError, match="servers/a"):
        await registry.put("servers/a", b"x")
    s3.faults.lost_answers = 0.0
    assert not await engine.create(NAME, [b"x"])
    assert await engine.get(NAME) == memoryview(b"x")
    assert await registry.get("servers/a") is not None


async def test_requests_are_not_retried(s3: FakeS3) -> None:
    """A second attempt would mistake the first one's object for another caller's."""
    engine, _ = await opened(s3)
    s3.faults.update(lost_answers=1.0)
    with pytest.raises(UnavailableError):
        await engine.create(NAME, [b"x"])
    s3.faults.update(lost_answers=0.0, slow_down=1.0)
    with pytest.raises(UnavailableError):
        await engine.create(NAME, [b"x"])
    assert s3.counts["put"] == 2


async def test_conflict_without_object_is_not_a_success(s3: FakeS3) -> None:
    engine, registry = await opened(s3)
    version = await registry.put("a", b"1")
    s3.faults.conflict = 1.0
    assert not await engine.create(NAME, [b"x"])
    assert await engine.get(NAME) is None
    assert await registry.compare_and_set("a", b"2", version) is None
    with pytest.raises(UnavailableError):
        await registry.put("a", b"3")
    s3.faults.conflict = 0.0
    assert await registry.compare_and_set("a", b"2", version) is not None


async def test_a_put_may_be_stored_later(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = await opened(s3)
    later, released = s3._put_later, asyncio.Event()

    async def put_when_released(request: Request) -> Answer:
        await released.wait()
        return await later(request)

    monkeypatch.setattr(s3, "_put_later", put_when_released)
    s3.faults.update(late_puts=1.0, late_s=0.2)
    with pytest.raises(UnavailableError):
        await engine.create(NAME, [b"x"])
    assert await engine.get(NAME) is None
    released.set()
    await until_async(lambda: s3.objects.now)
    assert await engine.get(NAME) == memoryview(b"x")


async def test_a_store_that_is_busy_broken_or_full(s3: FakeS3) -> None:
    engine, registry = await opened(s3)
    s3.faults.slow_down = 1.0
    for work in (engine.create(NAME, [b"x"]), engine.get(NAME), engine.delete([NAME]), registry.list("servers")):
        with pytest.raises(UnavailableError, match=r"\(503 SlowDown") as caught:
            await work
        assert not isinstance(caught.value, RefusedError)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "status code: 500 Internal Server Error: <Code>InternalError</Code>",
            UnavailableError,
            "concurrent change",
        ),
        ("status code: 502 Bad Gateway", UnavailableError, "internal error"),
        ("status code: 429 Too Many Requests", UnavailableError, "request rate"),
        ("status code: 507 Insufficient Storage: <Code>XMinioStorageFull</Code>", StorageFullError, "free space"),
        ("status code: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>", RefusedError, "unknown credentials"),
        ("status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>", RefusedError, "clock is wrong"),
        ("status code: 301 Moved: <Code>PermanentRedirect</Code>", RefusedError, "region and endpoint"),
        ("status code: 501 Not Implemented: <Code>NotImplemented</Code>", RefusedError, "rejected the request"),
        ("GET http://169.254.169.254/latest failed: status code: 403", RefusedError, "credentials are missing"),
        ("error decoding response body", UnavailableError, "error decoding response body"),
    ],
)
def test_store_errors_are_mapped(text: str, kind: type[Exception], message: str) -> None:
    error = public_error("store a", OSError(text), ())
    assert type(error) is kind
    with pytest.raises(kind, match=message):
        raise error


async def test_request_times_out(s3: FakeS3) -> None:
    remote = remote_store("s3://bucket/p", retries=0, timeout_s=1, **s3.config())
    engine = ObjectEngine(remote)
    s3.faults.latency_ms = {"put": (5_000, 5_001)}
    with pytest.raises(UnavailableError):
        await engine.create(NAME, [b"x"])


async def test_missing_bucket_is_not_an_empty_store(s3: FakeS3) -> None:
    engine, registry = await opened(s3, "another")

    async def listed() -> None:
        async for _ in engine.listed("log"):
            pass

    for work in (
        engine.create(NAME, [b"x"]),
        engine.get(NAME),
        engine.get(NAME, 3, 4),
        listed(),
        registry.get("a"),
        registry.list("servers"),
        registry.put("a", b"x"),
    ):
        with pytest.raises(RefusedError):
            await work


@pytest.mark.parametrize("fault", ["expired", "denied", "locked", "lost_requests", "slow_down"])
async def test_errors_and_logs_contain_no_credentials(
    s3: FakeS3, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    engine, registry = await opened(s3, access_key_id=KEY_ID, secret_access_key=SECRET)
    await engine.create(NAME, [b"x"])
    value = {"denied": ["put", "get", "list", "delete"], "expired": True, "locked": True}.get(fault, 1.0)
    s3.faults.update(**{fault: value})

    async def listed() -> None:
        async for _ in engine.listed("log"):
            pass

    texts = []
    works: list[Awaitable[object]] = [engine.delete([NAME]), registry.put(NAME, b"x")]
    if fault != "locked":
        works += [
            engine.create("log/b", [b"x"]),
            engine.get(NAME),
            engine.get(NAME, 0, 1),
            listed(),
            registry.list("a"),
        ]
        works += [registry.get("a"), registry.compare_and_set("a", b"x", "1")]
    for work in works:
        with pytest.raises(NadiError) as caught:
            await work
        error = caught.value
        logging.getLogger("test").error("failed", exc_info=error)
        texts += [str(error), repr(error), "".join(traceback.format_exception(error))]
        assert error.__cause__ is None
        assert error.__context__ is None
    for text in [*texts, caplog.text]:
        for secret in (SECRET, TOKEN, KEY_ID):
            assert secret not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "GET https://a.blob.core.windows.net/c/x?sv=1&sig=abc%3D in 3s",
            "GET https://a.blob.core.windows.net/c/x in 3s",
        ),
        ("PUT http://user:password@host/b failed", "PUT http://host/b failed"),
        ("<Token-0>hidden-value</Token-0>, aws_session_token=abc x", "<Token-0>…</Token-0>, aws_session_token=… x"),
        ("<Token-0>abc</Token-0><StringToSign>d</StringToSign>", "<Token-0>…</Token-0><StringToSign>d</StringToSign>"),
        ("a\nDebug source: everything", "a"),
        ("x" * 1000, "x" * 300 + "…"),
    ],
)
def test_texts_without_secrets(text: str, expected: str) -> None:
    assert without_secrets(text, ("hidden-value",)) == expected


@pytest.mark.parametrize(
    "url", ["s3://AKIA:topsecret@bucket/p", "az://container/p?sig=topsecret", "file://me:topsecret@host/p"]
)
def test_url_with_credentials_is_rejected_without_repeating_it(url: str) -> None:
    for work in (folder_of, lambda url: remote_store(url, retries=0, timeout_s=1)):
        with pytest.raises(InvalidArgumentError) as caught:
            work(url)
        assert "topsecret" not in str(caught.value)


def test_configuration_error_has_no_secret() -> None:
    account = '{"private_key": "topsecret"'
    with pytest.raises(InvalidArgumentError) as caught:
        remote_store("gs://bucket/p", retries=0, timeout_s=1, service_account_key=account)
    shown = "".join(traceback.format_exception(caught.value))
    assert "topsecret" not in shown
    assert caught.value.__context__ is None
