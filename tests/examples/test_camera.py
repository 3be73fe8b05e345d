"""The camera's pictures, and a short recording of them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from examples.camera.scene import passes, picture
from examples.programs import ROOT

pytest.importorskip("PIL", reason="no Pillow: pip install 'nadi[camera]'")


def test_pictures_are_jpeg_differ_and_fit_a_stream() -> None:
    made = [picture(number, 30, "12:00:00.000") for number in range(80, 90)]
    assert all(one.startswith(b"\xff\xd8\xff") for one in made)
    assert len(set(made)) == 10
    assert max(map(len, made)) < 64_000


def test_a_car_that_is_still_seen_has_no_slice() -> None:
    assert [car.name for car in passes(135, 30)] == []
    assert [car.name for car in passes(136, 30)] == ["car-1"]


def test_a_short_recording_is_right_and_says_how_to_play_it() -> None:
    command = [sys.executable, "-m", "examples.camera", "--seconds", "5", "--page", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "150 pictures and the slices of 1 cars are as they were taken" in said
    assert re.search(r"#/play/camera/camera\?slice=car-1", said)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--stay"], "--page"),
        (["--fps", "0"], "0 pictures"),
        (["--page", "0", "--controller", "tcp://h:1"], "--rest-port"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str], word: str) -> None:
    command = [sys.executable, "-m", "examples.camera", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert word in done.stdout
