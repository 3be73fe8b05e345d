"""Two outputs compared: which events only one of them has, and which keys have theirs in another order.

Events are known by their hashes, and forgotten as soon as both have had them: what is held is what they differ in so
far, and a hash for each key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b

from nadi.errors import InvalidArgumentError
from nadi.limits import SPARK_COMPARED_AT_ONCE

KeyOf = Callable[[bytes], bytes | str]
_TAKEN = 1000  # events of one, then of the other


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both made of the same input. missing: events, by number, that only the old version made; extra: that only
    the new one did; the first few of each. other_order: keys whose events are the same, in another order; None if
    no key was given."""

    old_events: int
    new_events: int
    missing: int
    extra: int
    first_missing: tuple[bytes, ...] = ()
    first_extra: tuple[bytes, ...] = ()
    other_order: int | None = None

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.other_order)

    def __str__(self) -> str:
        if self.is_equal:
            return f"equal: {self.old_events:,} events each"
        order = f", {self.other_order:,} keys in another order" if self.other_order else ""
        first = "".join(
            f"; {what}: {', '.join(repr(event[:60]) for event in events)}"
            for what, events in (("only the old has", self.first_missing), ("only the new has", self.first_extra))
            if events
        )
        return (
            f"{self.old_events:,} events of the old version, {self.new_events:,} of the new one: {self.missing:,} "
            f"missing, {self.extra:,} extra{order}{first}"
        )


async def compare(
    old: Callable[[], AsyncGenerator[bytes, None]],
    new: Callable[[], AsyncGenerator[bytes, None]],
    key_of: KeyOf | None = None,
    examples: int = 5,
) -> Comparison:
    """Compare the events of both; they are read again for examples if they differ.

    InvalidArgumentError if so much differs that it isn't worth counting.
    """
    balance: Counter[bytes] = Counter()
    chains: dict[bytes, list[bytes]] = {}  # by key: a hash over its events, old and new
    counts = [0, 0]
    async with aclosing(old()) as olds, aclosing(new()) as news:
        both = [olds, news]
        left = [0, 1]
        while left:
            for side in tuple(left):
                taken = 0
                async for event in both[side]:
                    taken += 1
                    digest = _digest(event)
                    balance[digest] += 1 - 2 * side
                    if not balance[digest]:
                        del balance[digest]
                    if key_of is not None:
                        chain = chains.setdefault(_key(key_of, event), [b"", b""])
                        chain[side] = _digest(chain[side] + digest)
                    if taken == _TAKEN:
                        break
                else:
                    left.remove(side)
                counts[side] += taken
                _check_size(len(balance), len(chains))
    missing, extra = +balance, -balance
    keys_differing: set[bytes] = set()
    first_missing = await _first(old(), missing, examples, key_of, keys_differing)
    first_extra = await _first(new(), extra, examples, key_of, keys_differing)
    other_order = None
    if key_of is not None:
        other_order = sum(one != other for key, (one, other) in chains.items() if key not in keys_differing)
    return Comparison(counts[0], counts[1], missing.total(), extra.total(), first_missing, first_extra, other_order)


def _check_size(events: int, keys: int) -> None:
    if events + keys > SPARK_COMPARED_AT_ONCE:
        raise InvalidArgumentError(
            f"the outputs have {events:,} different events and {keys:,} keys so far, more than are held at once: "
            "compare a shorter time, or by a coarser key"
        )


async def _first(
    events: AsyncGenerator[bytes, None], wanted: Counter[bytes], most: int, key_of: KeyOf | None, keys: set[bytes]
) -> tuple[bytes, ...]:
    """The first of the wanted ones; and the keys of all."""
    found: list[bytes] = []
    left = set(wanted)
    if not left:
        return ()
    async for event in events:
        digest = _digest(event)
        if digest in left:
            left.discard(digest)
            if len(found) < most:
                found.append(event)
            if key_of is not None:
                keys.add(_key(key_of, event))
            if not left:
                break
    return tuple(found)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _key(key_of: KeyOf, event: bytes) -> bytes:
    key = key_of(event)
    return key.encode() if isinstance(key, str) else key
