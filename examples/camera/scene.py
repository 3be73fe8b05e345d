"""What the camera sees: a road at dusk on which now and then a car passes, as JPEG pictures. The same for each number."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

from examples.running import ExampleError

WIDTH, HEIGHT = 480, 270
_ROAD, _HORIZON = 190, 120
_PASSES_S, _EVERY_S = 2.5, 6.0  # how long a car is seen, and how often one comes


@dataclass(frozen=True, slots=True)
class Pass:
    """A car, and the numbers of the first picture that shows it and of the first that doesn't any more."""

    name: str
    first: int
    end: int


def passes(frames: int, fps: int) -> list[Pass]:
    """The cars of so many pictures, but for one that is still seen at the end.

    >>> passes(400, 30)
    [Pass(name='car-1', first=60, end=135), Pass(name='car-2', first=240, end=315)]
    """
    found = []
    first = round(_EVERY_S / 3 * fps)
    while (end := first + round(_PASSES_S * fps)) < frames:
        found.append(Pass(f"car-{len(found) + 1}", first, end))
        first += round(_EVERY_S * fps)
    return found


def picture(number: int, fps: int, at: str) -> bytes:
    """The picture with that number, which says when it was taken: `at`."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise ExampleError("the camera draws with Pillow: pip install 'nadi[camera]'") from None
    image = Image.new("RGB", (WIDTH, HEIGHT), (23, 34, 52))
    draw = ImageDraw.Draw(image)
    for row in range(_HORIZON):  # the sky, lighter towards the horizon
        share = row / _HORIZON
        draw.line(
            [(0, row), (WIDTH, row)],
            fill=(round(20 + 170 * share**3), round(34 + 90 * share**2), round(66 + 50 * share)),
        )
    draw.rectangle([0, _HORIZON, WIDTH, HEIGHT], fill=(30, 44, 40))
    for hill in range(0, WIDTH, 4):
        top = _HORIZON - 14 - 10 * math.sin(hill / 60) - 6 * math.sin(hill / 23)
        draw.rectangle([hill, top, hill + 4, _HORIZON], fill=(26, 40, 44))
    draw.rectangle([0, _ROAD - 26, WIDTH, _ROAD + 34], fill=(48, 52, 58))
    for dash in range(-number * 0 - 40, WIDTH, 60):
        draw.rectangle([dash, _ROAD + 2, dash + 30, _ROAD + 5], fill=(190, 182, 150))
    seconds = number / fps
    since = (seconds - _EVERY_S / 3) % _EVERY_S
    if seconds >= _EVERY_S / 3 and since < _PASSES_S:
        _car(draw, -120 + (WIDTH + 240) * since / _PASSES_S, round(seconds // _EVERY_S))
    draw.ellipse([WIDTH - 24, 12, WIDTH - 14, 22], fill=(220, 50, 50) if number % fps < fps / 2 else (90, 30, 30))
    draw.text((10, HEIGHT - 20), f"{at}   picture {number}", fill=(225, 230, 230))
    made = io.BytesIO()
    image.save(made, "JPEG", quality=82)
    return made.getvalue()


def _car(draw: object, left: float, number: int) -> None:
    from PIL import ImageDraw

    assert isinstance(draw, ImageDraw.ImageDraw)
    body = [(196, 62, 44), (58, 120, 190), (214, 170, 60), (120, 160, 96)][number % 4]
    top = _ROAD - 34
    draw.polygon(
        [(left + 100, top + 26), (left + 340, top + 6), (left + 340, top + 46)], fill=(78, 78, 66)
    )  # its light
    draw.rounded_rectangle([left, top + 12, left + 104, top + 34], 7, fill=body)
    draw.polygon([(left + 20, top + 13), (left + 34, top - 4), (left + 74, top - 4), (left + 90, top + 13)], fill=body)
    draw.polygon(
        [(left + 27, top + 11), (left + 38, top), (left + 70, top), (left + 81, top + 11)], fill=(176, 204, 214)
    )
    for wheel in (left + 14, left + 72):
        draw.ellipse([wheel, top + 24, wheel + 20, top + 44], fill=(18, 20, 22))
        draw.ellipse([wheel + 6, top + 30, wheel + 14, top + 38], fill=(130, 134, 138))
    draw.rectangle([left + 98, top + 18, left + 104, top + 24], fill=(250, 240, 190))
