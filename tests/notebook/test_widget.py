"""The widget: what it plays, its messages, and its requirements."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import nadi
import nadi.notebook
from nadi.client import StreamManager, aio
from nadi.errors import InvalidArgumentError, SliceNotFoundError, StreamNotFoundError
from nadi.notebook.widget import modules, script
from nadi.testing import fill_stream


def test_the_script_has_the_pages_modules_each_after_those_it_imports() -> None:
    seen: set[str] = set()
    for name, text in modules().items():
        for one in [line.rpartition('"./')[2].rstrip('";') for line in text.splitlines() if ' from "./' in line]:
            assert one in seen, f"{name} imports {one}"
        seen.add(name)
    assert {"player.js", "playback.js", "chart.js", "views.js", "picture.js", "widget.js"} <= seen
    assert not {"api.js", "shell.js", "model.js", "app.js"} & seen  # of the page alone
    assert len(script()) < 200_000
    assert "http" not in script().replace("http://www.w3.org/2000/svg", "")
    assert ":root" not in script().partition("const STYLE")[2]


def test_player_without_anywidget_raises() -> None:
    program = (
        "import sys; sys.modules['anywidget'] = None\n"
        "import nadi, nadi.notebook\n"
        "manager = object.__new__(nadi.StreamManager)\n"
        "try: nadi.notebook.play(manager, 'home', 'meters')\n"
        "except nadi.errors.InvalidArgumentError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'nadi[notebook]'" in done.stdout


def test_the_package_is_imported_without_what_is_extra() -> None:
    program = (
        "import sys, nadi.notebook; print([m for m in ('anywidget', 'matplotlib', 'IPython') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


class Messages:
    """The messages that a widget sends."""

    def __init__(self, widget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.widget = widget
        self.messages: list[tuple[dict[str, str], Any]] = []
        monkeypatch.setattr(widget, "send", self._send)

    def _send(self, head: dict[str, str], buffers: list[bytes]) -> None:
        self.messages.append((head, json.loads(buffers[0])))

    def say(self, **message: Any) -> None:
        self.widget._handle_custom_msg(message, [])


@pytest.fixture
def anywidget() -> None:
    pytest.importorskip("anywidget", reason="needs anywidget, of the extra notebook")


@pytest.mark.usefixtures("anywidget")
def test_play_resolves_streams_and_slices(manager: StreamManager, scope: str) -> None:
    tail = fill_stream(manager, scope, "meters", [b"x"])
    head = manager.cuts(scope, "meters").head()
    some = manager.slices(scope).create("some", head, tail)
    manager.slices(scope).create("meters", head, tail)
    manager.create_stream(scope, "other")
    play = nadi.notebook.play
    for what, found in (("other", ("other", "")), ("some", ("meters", "some")), (some, ("meters", "some"))):
        widget = play(manager, scope, what, height_px=400)
        assert (widget.scope, widget.stream, widget.slice, widget.height_px) == (scope, *found, 400)
        widget.close()
    with pytest.raises(InvalidArgumentError):
        play(manager, scope, "meters")
    with pytest.raises(StreamNotFoundError):
        play(manager, scope, "nothing")
    manager.slices(scope).delete("some")
    with pytest.raises(SliceNotFoundError):
        play(manager, scope, some)
    with pytest.raises(InvalidArgumentError):
        play(manager, "elsewhere", some)
    with pytest.raises(InvalidArgumentError, match="height_px"):
        play(manager, scope, "other", height_px=10)
    with pytest.raises(InvalidArgumentError):
        play(object.__new__(aio.StreamManager), scope, "other")  # type: ignore[arg-type]


@pytest.mark.usefixtures("anywidget")
def test_widget_of_a_closed_client_refuses_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with nadi.embedded(tmp_path) as server:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters")
            widget = nadi.notebook.play(manager, "home", "meters")
        sent = Messages(widget, monkeypatch)
        sent.say(kind="known", id="a")
        ((head, body),) = sent.messages
        assert head == {"id": "a", "kind": "refused"}
        assert (body["status"], "open another" in body["error"]) == (400, True)
        widget.close()


def test_a_picture_of_segments_shows_itself(manager: StreamManager, scope: str) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra notebook")
    manager.scale_stream(scope, "meters", [0], [(0.0, 0.25), (0.25, 0.5)])
    picture = nadi.notebook.plot_segments(manager, scope, "meters")
    assert f"{scope}/meters" in picture._repr_svg_().replace("<!-- ", "")
    assert "</svg>" in picture._repr_svg_()
    assert len(picture.figure.axes[0].texts) == 4  # each segment's number
    assert nadi.notebook.plot_segments(manager, scope, "meters", last_s=3600).figure.axes
    for last_s in (0, -1, float("nan")):
        with pytest.raises(InvalidArgumentError, match="last_s"):
            nadi.notebook.plot_segments(manager, scope, "meters", last_s=last_s)
    with pytest.raises(StreamNotFoundError):
        nadi.notebook.plot_segments(manager, scope, "nothing")
