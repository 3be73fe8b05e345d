"""Ctrl-C wherever a thread that writes an event can notice it: nothing is lost or twice there, and nobody waits."""

from __future__ import annotations

import dis
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from nadi.client import StreamManager

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


def test_control_c_anywhere(manager: StreamManager) -> None:
    manager.create_stream("sc", "anywhere", 1)
    with manager.create_writer("sc", "anywhere") as writer:
        at, acknowledged = 0, [b"x first"]
        writer.write_event(b"x first").result(60)
        while True:
            at += 1
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
            with ThreadPoolExecutor(1) as other:
                assert other.submit(writer.flush, 60).exception(120) is None, interrupt.where
            if ack is not None:
                ack.result(60)
                acknowledged.append(event)
            writer.write_event(b"x after %d" % at).result(60)
        assert at > 20
        assert writer._core._sender._pending == 0
    end = manager.stream_info("sc", "anywhere").tail
    stored = [event for events in manager.read_batches("sc", "anywhere", end=end) for event in events]
    assert len(set(stored)) == len(stored)
    assert set(acknowledged) <= set(stored)
    assert [event for event in stored if event in set(acknowledged)] == list(dict.fromkeys(acknowledged))
    after = [int(event.split()[-1]) for event in stored if event.startswith(b"x after")]
    assert after == list(range(1, at))
