"""Operations on a store that doesn't answer."""

from __future__ import annotations

import pytest

from nadi.errors import UnavailableError
from nadi.object_log.outcomes import PATIENCE_S, patiently
from nadi.runtime import Runtime


class _Runtime(Runtime):
    """A runtime whose time passes only in pauses."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


async def test_patiently_warns_once_after_a_second_and_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    runtime, logged_at = _Runtime(), []

    async def work() -> None:
        logged_at.append((runtime.now_s, len(caplog.messages)))
        raise UnavailableError("no answer from nats://127.0.0.1:1")

    with pytest.raises(UnavailableError):
        await patiently("open the log", work, runtime)
    assert runtime.now_s >= PATIENCE_S
    (warning,) = caplog.messages
    assert warning.startswith("no answer from nats://127.0.0.1:1; retrying for up to 2")
    assert all(count == 0 for at_s, count in logged_at if at_s < 1.0)
