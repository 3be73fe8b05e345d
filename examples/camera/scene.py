"""The camera's view: a road at dusk on which a car passes every six seconds, as JPEG pictures.

The picture of a number is always the same, except for the time of day in its corner.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from examples.running import ExampleError

WIDTH, HEIGHT = 640, 360
_HORIZON, _ROAD_TOP, _ROAD_BOTTOM = 170, 216, 296
_FIRST_S, _EVERY_S, _SEEN_S = 2.0, 6.0, 2.5  # when the first car comes, how often one does, how long it is seen
Colour = tuple[int, int, int]
_CARS = ((196, 62, 44), (58, 120, 190), (214, 170, 60), (120, 160, 96))


@dataclass(frozen=True, slots=True)
class Car:
    """A car, and the numbers of its first picture and of the first one after it."""

    name: str
    first: int
    end: int


def car(number: int, fps: int) -> Car:
    """Return the car of that number, counting from 1.

    >>> car(2, 30)
    Car(name='car-2', first=240, end=315)
    """
    first = round((_FIRST_S + (number - 1) * _EVERY_S) * fps)
    return Car(f"car-{number}", first, first + max(1, round(_SEEN_S * fps)))


def cars(pictures: int, fps: int) -> list[Car]:
    """Return the cars that have passed within that many pictures.

    >>> [passed.name for passed in cars(400, 30)]
    ['car-1', 'car-2']
    """
    passed: list[Car] = []
    while (next_car := car(len(passed) + 1, fps)).end < pictures:
        passed.append(next_car)
    return passed


def picture(number: int, fps: int, at: str) -> bytes:
    """Draw the picture of that number, with the time `at` in its corner."""
    brush = _Brush(_road().copy())
    of_car = int(max(0.0, number / fps - _FIRST_S) // _EVERY_S) + 1
    seen = car(of_car, fps)
    if seen.first <= number < seen.end:
        share = (number - seen.first) / (seen.end - seen.first)
        _draw_car(brush, -130 + (WIDTH + 130) * share, _CARS[of_car % len(_CARS)])
    _draw_clock(brush, number / fps)
    image = brush.image.reduce(2)
    _write(_pillow().ImageDraw.Draw(image), number, at)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=80)
    return jpeg.getvalue()


# --- drawing --------------------------------------------------------------------------------


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError:
        raise ExampleError("the camera needs Pillow: run pip install 'nadi[camera]'") from None
    return PIL


class _Brush:
    """Draws at twice the size, so that edges are smooth after scaling down."""

    def __init__(self, image: Any) -> None:
        self.image = image
        self._draw = _pillow().ImageDraw.Draw(image)

    def area(self, points: Iterable[tuple[float, float]], fill: Colour) -> None:
        self._draw.polygon([(2 * x, 2 * y) for x, y in points], fill=fill)

    def box(self, left: float, top: float, right: float, bottom: float, fill: Colour, radius: float = 0) -> None:
        self._draw.rounded_rectangle([2 * left, 2 * top, 2 * right, 2 * bottom], 2 * radius, fill=fill)

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        at = [2 * (x - radius), 2 * (y - radius), 2 * (x + radius), 2 * (y + radius)]
        self._draw.ellipse(at, fill=fill)


@cache
def _road() -> Any:
    """Draw everything that stands still."""
    brush = _Brush(_pillow().Image.new("RGB", (2 * WIDTH, 2 * HEIGHT), (34, 48, 43)))
    for row in range(_HORIZON):  # the sky, lighter towards the horizon
        share = row / _HORIZON
        fill = (round(24 + 190 * share**3), round(36 + 96 * share**2), round(72 + 48 * share))
        brush.box(0, row, WIDTH, row + 1, fill)
    hills = [(x, _HORIZON - 24 - 13 * math.sin(x / 80) - 8 * math.sin(x / 31)) for x in range(0, WIDTH + 4, 4)]
    brush.area([(0, _HORIZON), *hills, (WIDTH, _HORIZON)], (27, 42, 46))
    brush.box(0, _ROAD_TOP, WIDTH, _ROAD_BOTTOM, (50, 54, 60))
    for edge in (_ROAD_TOP + 4, _ROAD_BOTTOM - 6):
        brush.box(0, edge, WIDTH, edge + 1.5, (150, 150, 140))
    for dash in range(-20, WIDTH, 80):
        brush.box(dash, 255, dash + 40, 258, (196, 188, 156))
    brush.box(0, HEIGHT - 32, WIDTH, HEIGHT, (12, 16, 22))
    return brush.image


def _write(draw: Any, number: int, at: str) -> None:
    light, dark = (232, 236, 236), (44, 52, 60)
    font = _font()
    draw.text((12, HEIGHT - 27), at, fill=light, font=font)
    draw.text((WIDTH - 12, HEIGHT - 27), f"picture {number:,}", fill=light, font=font, anchor="ra")
    for bit in range(16):  # the number in binary: light squares are ones, the first bit is the most significant
        left = WIDTH // 2 - 96 + 12 * bit
        draw.rectangle([left, HEIGHT - 21, left + 9, HEIGHT - 12], fill=light if number >> (15 - bit) & 1 else dark)


@cache
def _font() -> Any:
    return _pillow().ImageFont.load_default(size=18)


def _draw_clock(brush: _Brush, seconds: float) -> None:
    """Draw a clock whose hand turns in eight seconds, which shows the playback speed."""
    x, y, turn = WIDTH - 44, 44, seconds * math.pi / 4
    brush.disc(x, y, 26, (214, 220, 220))
    brush.disc(x, y, 24, (16, 22, 32))
    along, across = (math.sin(turn), -math.cos(turn)), (math.cos(turn), math.sin(turn))
    ends = [(-2.0, 0), (2.0, 0), (1.2, 19), (-1.2, 19)]
    brush.area([(x + a * across[0] + b * along[0], y + a * across[1] + b * along[1]) for a, b in ends], (240, 96, 84))


def _draw_car(brush: _Brush, left: float, body: Colour) -> None:
    top = _ROAD_TOP + 2
    light = [(122, 34), (300, 22), (300, 62), (122, 44)]
    roof = [(24, 20), (42, -6), (90, -6), (110, 20)]
    glass = [(33, 17), (46, 0), (86, 0), (99, 17)]
    brush.area([(left + x, top + y) for x, y in light], (84, 84, 70))
    brush.box(left, top + 18, left + 126, top + 48, body, radius=9)
    brush.area([(left + x, top + y) for x, y in roof], body)
    brush.area([(left + x, top + y) for x, y in glass], (176, 204, 214))
    brush.box(left + 64, top - 2, left + 68, top + 18, body)
    for wheel in (left + 29, left + 99):
        brush.disc(wheel, top + 49, 13, (18, 20, 22))
        brush.disc(wheel, top + 49, 5, (130, 134, 138))
    brush.box(left + 120, top + 28, left + 126, top + 36, (250, 240, 190))
