"""Ctrl-C wherever a thread that writes lone events can notice it: nothing is lost or twice there, and nobody waits."""

from __future__ import annotations

import dis
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from nadi.client import StreamManager
from nadi.client.segments import alone
from nadi.client.segments.alone import Alone

from .test_alone import in_thread, lent, made, stored

_FOLDERS = {"segments", "writing", "control"}  # of the client, all of whose modules take part
_ops: dict[CodeType, dict[int, str]] = {}


class Interrupt:
    """A trace function that raises KeyboardInterrupt at one of the places where CPython looks for signals: at a
    function's start, after a call of a builtin one, and where a loop goes round."""

    def __init__(self, at: int) -> None:
        self.where = ""
        self._left = at
        self._last: dict[FrameType, str] = {}
        self._has_returned = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event == "call":
            path = Path(code.co_filename)
            if path.parent.name not in _FOLDERS or path.parent.parent.name != "client":
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._pass(frame)
        elif event == "return":
            self._has_returned = True  # from Python to Python, where it isn't looked for
            self._last.pop(frame, None)
        elif event == "opcode":
            if code not in _ops:
                _ops[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
            if self._last.get(frame) in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") and not self._has_returned:
                self._pass(frame)
            self._has_returned = False
            self._last[frame] = _ops[code].get(frame.f_lasti, "")
        return self

    def _pass(self, frame: FrameType) -> None:
        self._left -= 1
        if not self._left:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            sys.settrace(None)
            raise KeyboardInterrupt


class Called:
    def __init__(self) -> None:
        self.is_set = threading.Event()

    def __call__(self, _: object) -> None:
        self.is_set.set()


@pytest.mark.parametrize("is_lent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_control_c_anywhere(manager: StreamManager, monkeypatch: pytest.MonkeyPatch, is_lent: bool) -> None:
    stream = f"anywhere-{is_lent}".lower()
    if is_lent:
        monkeypatch.setattr(alone, "LOOK_S", 3600.0)  # a connection isn't taken back because time has passed
    else:
        monkeypatch.setattr(Alone, "answered", lambda *_: None)
    with made(manager, stream) as writer:
        at, acknowledged = 0, [b"x first"]
        writer.write_event(b"x first").result(60)
        while True:
            at += 1
            if is_lent:
                lent(writer)
            interrupt, ack, event = Interrupt(at), None, b"x %d" % at
            traced = sys.gettrace()
            sys.settrace(interrupt)
            try:
                ack = writer.write_event(event)
                ack.result(60)
                acknowledged.append(event)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(traced)
            if not interrupt.where:
                break
            flushing, ended = in_thread(lambda: writer.flush(60))
            flushing.join(60)
            assert ended == [None], interrupt.where
            if ack is not None:
                ack.result(60)
                acknowledged.append(event)
            writer.write_event(b"x after %d" % at).result(60)
        assert at > 20
        assert writer._core._sender._pending == 0
    found = stored(manager, stream, b"x")
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)
    assert [event for event in found if event in set(acknowledged)] == list(dict.fromkeys(acknowledged))
    after = [int(event.split()[-1]) for event in found if event.startswith(b"x after")]
    assert after == list(range(1, at))


@pytest.mark.slow  # half a minute
def test_others_hear_of_what_an_interrupted_thread_has_read(manager: StreamManager) -> None:
    """Ctrl-C in the thread that reads an acknowledgement for several."""
    with made(manager, "others-hear") as writer:
        for at in range(1, 80):
            lent(writer)
            ack = writer.write_event(b"x")
            ack._when_done(called := Called())  # as another thread does that waits for it, too
            interrupt, traced = Interrupt(at), sys.gettrace()
            sys.settrace(interrupt)
            try:
                ack.result(60)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(traced)
            assert called.is_set.wait(60), interrupt.where
