"""A decoder for bytes that arrive in someone else's buffer."""

from __future__ import annotations

from nadi.wire import decoder
from nadi.wire.commands import Command


class Decoder(decoder.Decoder):
    def receive(self, data: bytes | memoryview) -> list[Command]:
        """Return all commands completed by these bytes, which are copied."""
        commands: list[Command] = []
        data = memoryview(data)
        while data:
            room = self.get_buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            commands += self.buffer_updated(count)
            data = data[count:]
        return commands
