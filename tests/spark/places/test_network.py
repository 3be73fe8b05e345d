"""Nodes are apart, as on a cluster: they reach each other by address, and not each other's loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import answers, wait_for
from .network import a_network, why_not

SERVE = "import socket, time; s = socket.create_server(('0.0.0.0', 7000)); time.sleep(600)"
ASK = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 60)"


@pytest.mark.timeout(120)
def test_nodes_reach_each_other_by_address_only(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "file").touch()
    with a_network() as network, (tmp_path / "said").open("wb") as said:
        one, other = network.node(), network.node()
        server = one.start([sys.executable, "-c", SERVE], {}, said, without=hidden)
        wait_for("it listens", lambda: answers(one.address, 7000))
        assert other.start([sys.executable, "-c", ASK, one.address], {}, said).wait(60) == 0
        assert other.start([sys.executable, "-c", ASK, "127.0.0.1"], {}, said).wait(60) != 0
        assert one.start(["test", "-e", str(hidden / "file")], {}, said, without=hidden).wait(60) != 0
        assert (hidden / "file").exists()
        one.kill()
        assert server.poll() is not None
        assert not one.processes()
        with pytest.raises(OSError, match=r"."), socket.create_connection((one.address, 7000), timeout=2):
            pass
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not [name for name in (one.name, other.name) if name in left]
