"""What the camera sees: a road at dusk on which a car passes every six seconds, as JPEG pictures.

The picture of a number is always the same, but for the time of day in its corner.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from examples.running import ExampleError

WIDTH, HEIGHT = 640, 360
_HORIZON, _ROAD_TOP, _ROAD_BOTTOM = 170, 216, 296
_FIRST_S, _EVERY_S, _SEEN_S = 2.0, 6.0, 2.5  # when the first car comes, how often one does, how long it is seen
_CARS = ((196, 62, 44), (58, 120, 190), (214, 170, 60), (120, 160, 96))


@dataclass(frozen=True, slots=True)
class Car:
    """A car, and the numbers of the first picture that shows it and of the first that doesn't any more."""

    name: str
    first: int
    end: int


def car(number: int, fps: int) -> Car:
    """The car of that number, from 1 on.

    >>> car(2, 30)
    Car(name='car-2', first=240, end=315)
    """
    first = round((_FIRST_S + (number - 1) * _EVERY_S) * fps)
    return Car(f"car-{number}", first, first + max(1, round(_SEEN_S * fps)))


def cars(pictures: int, fps: int) -> list[Car]:
    """The cars of so many pictures that have come and gone.

    >>> [one.name for one in cars(400, 30)]
    ['car-1', 'car-2']
    """
    found: list[Car] = []
    while (one := car(len(found) + 1, fps)).end < pictures:
        found.append(one)
    return found


def picture(number: int, fps: int, at: str) -> bytes:
    """The picture with that number, which says when it was taken: `at`."""
    image = _road().copy()
    draw = _pillow().ImageDraw.Draw(image)
    of_car = int(max(0.0, number / fps - _FIRST_S) // _EVERY_S) + 1
    seen = car(of_car, fps)
    if seen.first <= number < seen.end:
        share = (number - seen.first) / (seen.end - seen.first)
        _draw_car(draw, -130 + (WIDTH + 130) * share, _CARS[of_car % len(_CARS)])
    draw.rectangle([0, HEIGHT - 32, WIDTH, HEIGHT], fill=(12, 16, 22))
    font = _font()
    draw.text((12, HEIGHT - 27), at, fill=(232, 236, 236), font=font)
    draw.text((WIDTH - 12, HEIGHT - 27), f"picture {number:,}", fill=(232, 236, 236), font=font, anchor="ra")
    _draw_hand(draw, number / fps)
    for bit in range(16):  # the number once more, for machines: light squares are ones, the first is the largest
        left = WIDTH // 2 - 96 + 12 * bit
        fill = (232, 236, 236) if number >> (15 - bit) & 1 else (44, 52, 60)
        draw.rectangle([left, HEIGHT - 21, left + 9, HEIGHT - 12], fill=fill)
    made = io.BytesIO()
    image.save(made, "JPEG", quality=80)
    return made.getvalue()


# --- how it is drawn --------------------------------------------------------------------------------


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError:
        raise ExampleError("the camera draws with Pillow: pip install 'nadi[camera]'") from None
    return PIL


@cache
def _font() -> Any:
    return _pillow().ImageFont.load_default(size=18)


@cache
def _road() -> Any:
    """All that stands still."""
    image = _pillow().Image.new("RGB", (WIDTH, HEIGHT), (34, 48, 43))
    draw = _pillow().ImageDraw.Draw(image)
    for row in range(_HORIZON):  # the sky, lighter towards the horizon
        share = row / _HORIZON
        fill = (round(24 + 190 * share**3), round(36 + 96 * share**2), round(72 + 48 * share))
        draw.line([(0, row), (WIDTH, row)], fill=fill)
    hills = [(x, _HORIZON - 24 - 13 * math.sin(x / 80) - 8 * math.sin(x / 31)) for x in range(0, WIDTH + 4, 4)]
    draw.polygon([(0, _HORIZON), *hills, (WIDTH, _HORIZON)], fill=(27, 42, 46))
    draw.rectangle([0, _ROAD_TOP, WIDTH, _ROAD_BOTTOM], fill=(50, 54, 60))
    for edge in (_ROAD_TOP + 4, _ROAD_BOTTOM - 6):
        draw.rectangle([0, edge, WIDTH, edge + 1], fill=(150, 150, 140))
    for dash in range(-20, WIDTH, 80):
        draw.rectangle([dash, 255, dash + 40, 258], fill=(196, 188, 156))
    return image


def _draw_hand(draw: Any, seconds: float) -> None:
    """A clock whose hand goes round once in eight seconds: one sees how fast it is played."""
    x, y, radius = WIDTH - 44, 44, 26
    draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=(16, 22, 32), outline=(214, 220, 220), width=2)
    turn = seconds * math.pi / 4
    tip = (x + (radius - 7) * math.sin(turn), y - (radius - 7) * math.cos(turn))
    draw.line([(x, y), tip], fill=(240, 96, 84), width=4)


def _draw_car(draw: Any, left: float, body: tuple[int, int, int]) -> None:
    top = _ROAD_TOP + 2
    light = [(left + 122, top + 34), (left + 300, top + 22), (left + 300, top + 62), (left + 122, top + 44)]
    draw.polygon(light, fill=(84, 84, 70))
    draw.rounded_rectangle([left, top + 18, left + 126, top + 48], 9, fill=body)
    draw.polygon([(left + 24, top + 20), (left + 42, top - 6), (left + 90, top - 6), (left + 110, top + 20)], fill=body)
    glass = [(left + 33, top + 17), (left + 46, top), (left + 86, top), (left + 99, top + 17)]
    draw.polygon(glass, fill=(176, 204, 214))
    draw.rectangle([left + 64, top - 2, left + 68, top + 18], fill=body)
    for wheel in (left + 16, left + 86):
        draw.ellipse([wheel, top + 36, wheel + 26, top + 62], fill=(18, 20, 22))
        draw.ellipse([wheel + 8, top + 44, wheel + 18, top + 54], fill=(130, 134, 138))
    draw.rectangle([left + 120, top + 28, left + 126, top + 36], fill=(250, 240, 190))
