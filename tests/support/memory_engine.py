"""An in-memory `LogEngine` and `Registry` for tests: contents are in dicts that outlive them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from nadi.wire.fields import Buffer


@dataclass(slots=True)
class MemoryEngine:
    """Objects by name; calls neither fail nor take time."""

    objects: dict[str, bytes] = field(default_factory=dict)

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = b"".join(bytes(part) for part in parts)
        return True

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        stored = self.objects.get(name)
        if stored is None:
            return None
        return memoryview(stored)[position : None if length is None else position + length]

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        yield {name: len(data) for name, data in self.objects.items() if name.startswith(f"{prefix}/")}

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    async def close(self) -> None:
        pass
