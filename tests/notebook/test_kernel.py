"""The guide's notebook and a widget in a real Jupyter kernel.

Skipped without Jupyter's kernel.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client import StreamManager
from nadi.testing import fill_stream

JUPYTER = "needs Jupyter: nbclient and ipykernel, of the extra dev, and anywidget, of the extra notebook"
for module in ("nbclient", "ipykernel", "anywidget", "matplotlib"):
    pytest.importorskip(module, reason=JUPYTER)
pytestmark = pytest.mark.filterwarnings("ignore:::(zmq|jupyter_client|jupyter_core|nbclient|nbformat|traitlets)")
GUIDE = Path(__file__).parents[2] / "docs" / "notebooks" / "replay.ipynb"
LIMIT_S = 60


def test_the_guide_has_no_outputs() -> None:
    cells = json.loads(GUIDE.read_text())["cells"]
    assert sum(cell["cell_type"] == "code" for cell in cells) > 8
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def test_the_guide_runs_and_shows_what_it_promises(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(GUIDE, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}, allow_errors=False
    )
    client.execute()
    shown = [out["data"] for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    tables = [one["text/html"] for one in shown if "text/html" in one]
    assert [title for one in tables for title in re.findall(r"font-weight:600[^>]*>([^<]*)<", one)] == [
        "StreamInfo",
        "NamedSlice",
        "all segments",
        "ReaderGroup home/billing",
    ]
    assert "after the kettle was switched on" in tables[1]
    assert len(re.findall("<tr>", tables[2])) == 5  # two segments, the two that replaced one of them, and heads
    (picture,) = [one["image/svg+xml"] for one in shown if "image/svg+xml" in one]
    assert "</svg>" in picture
    assert [one for one in shown if "application/vnd.jupyter.widget-view+json" in one]
    (said,) = [out["text"] for cell in notebook.cells for out in cell.get("outputs", []) if "text" in out]
    assert said == "180 events\n"


class Kernel:
    """A kernel, and the messages that a browser would get from it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, code: str) -> list[dict[str, Any]]:
        """Run a cell; return its messages."""
        done = self._client.execute(code)
        return list(self._until(lambda one: is_idle(one) and one["parent_header"].get("msg_id") == done))

    def say(self, comm: str, **message: Any) -> None:
        body = {"comm_id": comm, "data": {"method": "custom", "content": message}}
        self._client.shell_channel.send(self._client.session.msg("comm_msg", body))

    def hear(self, comm: str) -> tuple[dict[str, Any], Any]:
        """Return the next custom message, with the JSON in its buffer."""

        def is_one(one: dict[str, Any]) -> bool:
            return bool(one["msg_type"] == "comm_msg" and one["content"]["data"].get("method") == "custom")

        *_, found = self._until(is_one)
        assert found["content"]["comm_id"] == comm
        return found["content"]["data"]["content"], json.loads(bytes(found["buffers"][0]))

    def _until(self, is_last: Any) -> Iterator[dict[str, Any]]:
        ends = time.monotonic() + LIMIT_S
        while time.monotonic() < ends:
            found = self._client.get_iopub_msg(timeout=LIMIT_S)
            assert found["msg_type"] != "error", "\n".join(found["content"]["traceback"])
            yield found
            if is_last(found):
                return
        raise AssertionError("it took too long")


def is_idle(message: dict[str, Any]) -> bool:
    return bool(message["msg_type"] == "status" and message["content"]["execution_state"] == "idle")


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=LIMIT_S)
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_widget_answers_over_its_comm(kernel: Kernel, tmp_path: Path) -> None:
    with nadi.embedded(tmp_path) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        tail = fill_stream(manager, "home", "meters", [b'{"w": 1}'] * 5)
        manager.slices("home").create("all", manager.cuts("home", "meters").head(), tail)
        messages = kernel.run(
            "import os\n"
            "os.environ['NADI_LIMITS'] = 'page_behind_s=600'\n"  # playing that is late would pass over events
            "import nadi, nadi.notebook\n"
            f"manager = nadi.StreamManager({server.controller_uri!r})\n"
            "player = nadi.notebook.play(manager, 'home', 'all')\n"
            "player"
        )
        opened = [one["content"] for one in messages if one["msg_type"] == "comm_open"]
        (state,) = [one["data"]["state"] for one in opened if "_esm" in one["data"]["state"]]
        (comm,) = [one["comm_id"] for one in opened if "_esm" in one["data"]["state"]]
        assert (state["stream"], state["slice"]) == ("meters", "all")
        kernel.say(comm, kind="known", id="a", places=True)
        head, known = kernel.hear(comm)
        assert (head, [one["name"] for one in known["slices"]]) == ({"id": "a", "kind": "answer"}, ["all"])
        kernel.say(comm, kind="play", id="p", slice="all", speed="100", pauses="skip")
        events = []
        while (found := kernel.hear(comm))[0]["kind"] == "batch":
            events += found[1]["events"]
            kernel.say(comm, kind="more", id="p")
        assert (found[0]["kind"], [one["text"] for one in events]) == ("end", ['{"w": 1}'] * 5)
        kernel.say(comm, kind="tail", id="t")
        assert kernel.hear(comm)[0] == {"id": "t", "kind": "batch"}
        kernel.run("player.close()")
        messages = kernel.run(
            "import time\n"
            "ends = time.monotonic() + 40\n"
            "while player._projector._open and time.monotonic() < ends: time.sleep(0.01)\n"
            "print(list(player._projector._open))"
        )
        assert [one["content"]["text"] for one in messages if one["msg_type"] == "stream"] == ["[]\n"]
        kernel.run("manager.close()")
