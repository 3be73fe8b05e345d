"""Damage: what is done to valid bytes, and bytes that never were valid."""

from __future__ import annotations

import random

INTERESTING_BYTES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
INTEGERS = (0, 1, -1, 2, 7, 8, 100, 1 << 15, 1 << 24, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1 << 32)


def noise(chance: random.Random, most: int = 200) -> bytes:
    return chance.randbytes(chance.randrange(most))


def damaged(chance: random.Random, data: bytes) -> bytes:
    """`data` after one to four small changes."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(damaged) + 1)
        match chance.randrange(6):
            case 0 if place < len(damaged):
                damaged[place] ^= 1 << chance.randrange(8)
            case 1 if place < len(damaged):
                damaged[place] = chance.choice(INTERESTING_BYTES)
            case 2:
                damaged[place:place] = noise(chance, 12)
            case 3:
                del damaged[place : place + chance.randint(1, 8)]
            case 4:
                del damaged[place:]
            case _:
                damaged[place:place] = damaged[place : place + chance.randint(1, 40)]
    return bytes(damaged)


def integer(chance: random.Random, bits: int) -> int:
    """A signed integer of so many bits, often one at an edge."""
    value = chance.choice(INTEGERS) if chance.random() < 0.7 else chance.getrandbits(bits)
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
