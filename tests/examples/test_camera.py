"""The camera's pictures, and a short recording of them."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from examples.camera.__main__ import check
from examples.camera.recorder import digest, record
from examples.camera.scene import HEIGHT, WIDTH, Car, cars, picture
from examples.programs import ROOT
from examples.running import Place

Image = pytest.importorskip("PIL.Image", reason="no Pillow: pip install 'nadi[camera]'")


def run(*options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "examples.camera", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert not done.stderr
    return done.returncode, " ".join(done.stdout.split())


def test_consecutive_pictures_are_different_small_jpegs() -> None:
    made = [picture(number, 30, "12:00:00.0") for number in range(55, 140)]
    assert len(set(made)) == len(made)
    assert max(map(len, made)) < 40_000
    with Image.open(io.BytesIO(made[0])) as image:
        assert (image.format, image.size) == ("JPEG", (WIDTH, HEIGHT))
    assert picture(55, 30, "12:00:00.0") == made[0]


def test_visible_car_has_not_passed() -> None:
    assert cars(135, 30) == []
    assert cars(136, 30) == [Car("car-1", 60, 135)]


def test_each_car_has_a_bookmark_and_a_slice_with_its_pictures_alone(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("road")
        manager.create_stream("road", "camera")
        taken = record(manager, "road", "camera", range(50, 300), 60)  # from before a car until it is gone
        assert [mark.name for mark in manager.bookmarks("road").list()] == ["car-1-comes"]
        (one,) = manager.slices("road").list()
        assert one.name == "car-1"
        assert one.start == manager.bookmarks("road").get("car-1-comes").cut
        with manager.open_slice("road", "car-1") as reader:
            found = [digest(event) for _, block in reader for event in block.events()]
        assert found == taken[120 - 50 : 270 - 50]
        here = Place(manager, server.controller_uri, "road", tmp_path)
        assert not check(here, taken, [Car("car-1", 1, 2)]), "the mistake is detected"


def test_short_recording_is_correct_and_prints_the_player_command() -> None:
    code, said = run("--seconds", "5", "--page", "0")
    assert code == 0, said
    assert "pictures: 150, slices of cars: 1" in said
    assert re.search(r"the live page is at http://127.0.0.1:\d+", said)
    assert "#/play/camera/camera?slice=car-1" in said


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--stay"], "--page 9091"),
        (["--fps", "0"], "--fps"),
        (["--seconds", "0"], "--seconds"),
        (["--page", "0", "--controller", "tcp://h:1"], "--rest-port"),
    ],
)
def test_contradictory_options_are_rejected(options: list[str], word: str) -> None:
    code, said = run(*options)
    assert code == 1
    assert word in said
