"""Embedded servers that start in a third of the CPU time: forks of a Python process with preloaded modules.

A test run starts a thousand servers, and most of a start is spent on imports. A fork gets its own arguments,
environment, working directory and standard files, and then acts like `python -m nadi.standalone`. Limits are constants
once nadi is imported, so a server with NADI_LIMITS is forked from a process that has imported nadi with these limits;
the processes of the last two values are kept, as tests of a file often use one.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, ClassVar

LIBRARIES = (
    "asyncio crc32c email.message google.protobuf.descriptor_pool grpc.aio http.client html importlib.metadata inspect "
    "logging.handlers msgspec.json multiprocessing.connection numpy obstore ssl tempfile urllib.request uvloop "
    "xml.etree.ElementTree"
)
NADI = "nadi.standalone.clustered nadi.standalone.server nadi.standalone.assembly nadi.controller.rest.server"
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, of prctl(2)


class Server:
    """The part of `subprocess.Popen` that `nadi.embedded` uses. Like with Popen, the process is a child of this one."""

    _first: ClassVar[socket.socket | None] = None  # the link to a process without nadi
    _forking: ClassVar[dict[str, socket.socket]] = {}  # the links to its forks, with nadi, by their limits
    _turn = threading.Lock()

    def __init__(
        self, command: Sequence[str], *, stdin: int, stdout: int, env: Mapping[str, str], process_group: int
    ) -> None:
        assert (command[1], stdin, stdout, process_group) == ("-m", subprocess.PIPE, subprocess.PIPE, 0)
        ours, theirs = [0, 0], [0, 0, 2]
        theirs[0], ours[0] = os.pipe()
        ours[1], theirs[1] = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(ours[0], "wb", 0)
        self.stdout: IO[bytes] = os.fdopen(ours[1], "rb", 0)
        self.returncode: int | None = None
        with self._turn:
            link = self._link(env.get("NADI_LIMITS", ""))
            adopts = ctypes.CDLL(None, use_errno=True).prctl
            adopts(SUBREAPER, 1, 0, 0, 0)  # adopts processes whose parent ends
            try:
                socket.send_fds(link, [json.dumps([command[2:], dict(env), os.getcwd()]).encode()], theirs)
                self.pid = int(link.recv(100))
                assert link.recv(100) == b"adopted"
            finally:
                adopts(SUBREAPER, 0, 0, 0, 0)
        self._handle = os.pidfd_open(self.pid)
        for end in theirs[:2]:
            os.close(end)

    @classmethod
    def _link(cls, limits: str) -> socket.socket:
        """Return the link to a process with these limits."""
        link = cls._forking.pop(limits, None)
        if link is None:
            cls._first = first = cls._first or _forking()
            link, theirs = _pair()
            with theirs:
                socket.send_fds(first, [json.dumps(limits).encode()], [theirs.fileno()])
            others = [used for used in cls._forking if used]
            if limits and len(others) > 1:
                cls._forking.pop(others[0]).close()
        cls._forking[limits] = link  # the last used one is last
        return link

    def poll(self) -> int | None:
        if self.returncode is None and wait([self._handle], 0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not wait([self._handle], timeout):
                raise subprocess.TimeoutExpired("a server", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_servers() -> None:
    """Make `nadi.embedded` fork its servers from now on, in this process."""
    embedded = import_module("nadi.standalone.embedded")
    embedded.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=_started, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )


def _started(command: Sequence[str], *, env: Mapping[str, str], **how: Any) -> Server | subprocess.Popen[bytes]:
    """Fork a server, unless the command needs a Python with other options than the forking process."""
    same = all(env.get(name) == os.environ.get(name) for name in {*env, *os.environ} if name.startswith("PYTHON"))
    return Server(command, env=env, **how) if same else subprocess.Popen(command, env=env, **how)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _forking() -> socket.socket:
    """Start a process that forks others, and ends with this one; return the link to it."""
    ours, theirs = _pair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "NADI_LIMITS": "", "OPENBLAS_NUM_THREADS": "1", "GRPC_ENABLE_FORK_SUPPORT": "0"},
        ).returncode = 0  # it isn't awaited
    return ours


def _import(modules: str) -> None:
    for module in modules.split():
        import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "only a single-threaded process can fork safely"


def _fork(link: socket.socket) -> None:
    """Fork a process with nadi for each value of the limits."""
    _import(LIBRARIES)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(link, 1 << 20, 1)
        if not message:
            return
        if not os.fork():
            link.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ["NADI_LIMITS"] = json.loads(message)
            _import(NADI)
            _fork_servers(socket.socket(fileno=files[0]))
            return
        os.close(files[0])


def _fork_servers(link: socket.socket) -> None:
    while True:
        message, files, _, _ = socket.recv_fds(link, 1 << 20, 3)
        if not message:
            return
        middle = os.fork()
        if not middle:
            middle = os.getpid()
            if server := os.fork():
                link.send(b"%d" % server)
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.001)
            link.close()
            (module, *arguments), environment, folder = json.loads(message)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            os.setpgid(0, 0)
            os.environ.clear()
            os.environ.update(environment)
            time.tzset()
            os.chdir(folder)
            sys.path[0], sys.argv[1:] = folder, arguments
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        for file in files:
            os.close(file)
        os.waitpid(middle, 0)
        link.send(b"adopted")


if __name__ == "__main__":
    _fork(socket.socket(fileno=int(sys.argv[1])))
