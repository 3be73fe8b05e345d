"""What messages say: the examples of the RFCs, what senders really send, and what is damaged."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.ingest.syslog.choices import Form, Key
from nadi.ingest.syslog.events import Making, parsed

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _in_zurich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_rfc_5424() -> None:
    found = parsed(
        b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed", NOW
    )
    assert (found.time, found.host, found.app) == ("2003-10-11T22:14:15.003Z", "mymachine.example.com", "su")
    assert found.fields == {
        "facility": "auth",
        "severity": "crit",
        "host": "mymachine.example.com",
        "app": "su",
        "msgid": "ID47",
        "message": "'su root' failed",
    }
    elements = rb'[a@1 iut="3" q="x\"y\]z\\" ip="1" ip="2" ip="3"][b@2 c="d"][empty]'
    found = parsed(b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - " + elements, NOW)
    assert found.fields["data"] == {
        "a@1": {"iut": "3", "q": 'x"y]z\\', "ip": ["1", "2", "3"]},
        "b@2": {"c": "d"},
        "empty": {},
    }
    assert (found.fields["procid"], found.fields["message"]) == ("8710", "")
    nothing = parsed(b"<0>1 - - - - - -", NOW)
    assert (nothing.time, nothing.host, nothing.app) == (None, None, None)
    assert nothing.fields == {"facility": "kern", "severity": "emerg", "message": ""}


def test_rfc_3164() -> None:
    found = parsed(b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed", NOW)
    assert (found.time, found.host, found.app) == ("2025-10-11T22:14:15+02:00", "mymachine", "su")
    assert found.fields["message"] == "'su root' failed"
    assert parsed(b"<13>Jan  3 00:00:00.25 h a: x", NOW).time == "2026-01-03T00:00:00.25+01:00"
    assert parsed(b"<13>Dec 31 23:59:59 h a: x", NOW).time == "2025-12-31T23:59:59+01:00"
    assert parsed(b"<13>Feb 29 00:00:00 h a: x", datetime(2025, 3, 1, tzinfo=UTC)).time == "2024-02-29T00:00:00+01:00"
    precise = parsed(b"<13>2026-10-11T22:14:15.003+02:00 hall cron[8]: ran", NOW)  # as rsyslog forwards
    assert (precise.time, precise.host) == ("2026-10-11T22:14:15.003+02:00", "hall")
    assert (precise.fields["app"], precise.fields["procid"], precise.fields["message"]) == ("cron", "8", "ran")
    local = parsed(b"<13>Oct 11 22:14:15 root: hello", NOW)  # as programs tell their own machine
    assert (local.host, local.app, local.fields["message"]) == (None, "root", "hello")


@pytest.mark.parametrize(
    "text",
    [
        '{"level":"info","msg":"ok"}',
        '["a", "b: c"]',
        "10:15:32 starting",
        "10:15:32.123: starting",
        "192.168.0.1: refused",
        "http://10.0.0.7/ is slow",
        "fe80::1 is up",
        "localhost:8080 refused",
        r"C:\logs is full",
        'level=info msg="a: b"',
        '"quoted": x',
        "<a href='x: y'>",
        "note to self: buy",
        "app[1] without a colon",
    ],
)
def test_rfc_3164_text_without_a_tag_is_the_whole_message(text: str) -> None:
    found = parsed(f"<34>Oct 11 22:14:15 hall {text}".encode(), NOW)
    assert (found.host, found.app, found.fields["message"]) == ("hall", None, text)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2}', "10:15:32 starting", '["a", "b"]', "level=info x"])
def test_rfc_3164_text_that_is_no_host_is_the_message(text: str) -> None:
    found = parsed(f"<34>Oct 11 22:14:15 {text}".encode(), NOW)
    assert (found.host, found.app, found.fields["message"]) == (None, None, text)


@pytest.mark.parametrize(
    "tag",
    [
        "su",
        "7zip",
        "systemd-logind",
        "(sd-pam)",
        "postfix/smtpd",
        "my_app.v2",
        "%LINK-3-UPDOWN",
        "NetworkManager",
        "a@b",
    ],
)
def test_rfc_3164_tag_that_programs_have_is_the_app(tag: str) -> None:
    for sent, procid, text in ((f"{tag}: x", None, "x"), (f"{tag}[12]:7 x", "12", "7 x"), (f"{tag}:x", None, "x")):
        found = parsed(f"<34>Oct 11 22:14:15 hall {sent}".encode(), NOW)
        assert (found.app, found.fields.get("procid"), found.fields["message"]) == (tag, procid, text)


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (b"- -  started", "started"),
        (b"- -   indented", " indented"),
        (b"- - started", "started"),
        (b"ID47 -  started", " started"),
        (b'- [a@1 b="c"]  started', " started"),
    ],
)
def test_rfc_5424_text_of_rsyslog_has_no_space_of_its_tag(rest: bytes, text: str) -> None:
    assert parsed(b"<13>1 2026-11-28T20:18:36Z vm app - " + rest, NOW).fields["message"] == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"hello", "hello"),
        (b"<192>1 - - - - - - x", "<192>1 - - - - - - x"),
        (b"<01>x", "<01>x"),
        (b"<13>x: y", "x: y"),
        (b"<13>1 2026-02-30T00:00:00Z h a - - - x", "1 2026-02-30T00:00:00Z h a - - - x"),
        (b"<13>1 - " + b"h" * 256 + b" a - - - x", "1 - " + "h" * 256 + " a - - - x"),
        (b"<13>2 - h a - - - x", "2 - h a - - - x"),
        (b'<13>1 - - - - - [a b="c] x', '[a b="c] x'),
        (b"<13>1 - - - - - [a]x", "[a]x"),
        (b"<13>1 - - - - - nodata", "nodata"),
        (b"<13>Foo 11 22:14:15 h a: x", "Foo 11 22:14:15 h a: x"),
        (b"<13>Oct 11 25:14:15 h a: x", "Oct 11 25:14:15 h a: x"),
        ("<13>1 ٢٠٢٦-10-11T22:14:15Z h a - - - x".encode(), "1 ٢٠٢٦-10-11T22:14:15Z h a - - - x"),
    ],
)
def test_what_is_damaged_is_kept_as_text(message: bytes, text: str) -> None:
    assert parsed(message, NOW).fields["message"] == text


@given(st.lists(st.sampled_from(["<13>", "1 ", "- ", "[", "]", '"', "\\", "a=", " ", "Oct 11 22:14:15 ", "ü", "\0"])))
def test_no_message_is_too_odd(parts: list[str]) -> None:
    message = "".join(parts).encode() + b"\xff"
    for form in Form:
        for key in Key:
            event, _ = Making(form, key).event(message, "10.0.0.1", NOW)
            if form is Form.RAW:
                assert event == message
            else:
                assert base64.b64decode(json.loads(event)["raw"]) == message


def test_long_ones_take_no_longer() -> None:
    """64 KiB of what an expression could go back and forth over."""
    starts = (b"<13>1 - - - - - ", b"<13>Oct 11 22:14:15 ", b"<13>", b"")
    bodies = (
        b"[a" + b' b="c"' * 10_000,
        b"[a]" * 20_000 + b"x",
        b'[a b="' + b"\\" * 60_000,
        b"[" + b"a" * 60_000,
        b" " * 60_000,
    )
    began = time.process_time()
    for start in starts:
        for body in bodies:
            parsed(start + body, NOW)
    assert time.process_time() - began < 5


def test_events_and_their_keys() -> None:
    message = b"<13>1 - hall cron - - - x"
    event, key = Making().event(message, "10.0.0.1", NOW)
    received = "2026-01-02T03:04:05.000000Z"
    assert json.loads(event) == {
        "time": received,
        "received": received,
        "from": "10.0.0.1",
        "facility": "user",
        "severity": "notice",
        "host": "hall",
        "app": "cron",
        "message": "x",
    }
    assert key == "hall"
    keys = [Making(Form.RAW, key).event(message, "10.0.0.1", NOW) for key in (Key.APP, Key.ADDRESS, Key.NONE)]
    assert keys == [(message, "cron"), (message, "10.0.0.1"), (message, None)]
    for key in (Key.HOST, Key.APP):
        assert Making(Form.RAW, key).event(b"<13>x", "10.0.0.1", NOW) == (b"<13>x", "10.0.0.1")
