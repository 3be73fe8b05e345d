"""What becomes of a message in a stream: its event, and its routing key."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from nadi.ingest.syslog.choices import Form, Key
from nadi.ingest.syslog.messages import parsed


@dataclass(frozen=True, slots=True)
class Making:
    """How events are made.

    >>> from datetime import UTC
    >>> Making(Form.RAW).event(b"<13>hello", "10.0.0.1", datetime.now(UTC))
    (b'<13>hello', '10.0.0.1')
    """

    form: Form = Form.JSON
    key: Key = Key.HOST

    def event(self, message: bytes, address: str, now: datetime) -> tuple[bytes, str | None]:
        """The event, and its key. now: when it came, in UTC."""
        said = parsed(message, now)
        key: str | None = None
        if self.key is not Key.NONE:
            key = address if self.key is Key.ADDRESS else said.host or address
            if self.key is Key.APP:
                key = said.app or key
        if self.form is Form.RAW:
            return message, key
        received = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
        event: dict[str, Any] = {"time": said.time or received, "received": received, "from": address, **said.fields}
        if not _is_text(message):
            event["raw"] = base64.b64encode(message).decode()  # as it came, for it isn't UTF-8
        return msgspec.json.encode(event), key


def _is_text(message: bytes) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
