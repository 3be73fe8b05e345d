"""Programs of nadi and of the tests, as forks of a Python process with preloaded modules: a server starts in a third of
the CPU time.

A test run starts thousands of programs, and most of a start is spent on imports. A fork gets its own arguments,
environment, working directory and files, and then acts like `python -m MODULE`; `python -u -m MODULE` isn't forked.
Limits are constants once nadi is imported, so a program with NADI_LIMITS is forked from a process that has imported
nadi with these limits; the processes of the last two values are kept, as tests of a file often use one.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

LIBRARIES = (
    "asyncio crc32c email.message google.protobuf.descriptor_pool grpc.aio http.client html importlib.metadata inspect "
    "logging.handlers msgspec.json multiprocessing.connection numpy obstore ssl tempfile urllib.request uvloop "
    "xml.etree.ElementTree"
)
NADI = (
    "nadi.standalone.clustered nadi.standalone.server nadi.standalone.assembly nadi.controller.rest.server nadi.client"
)
PACKAGES = ("nadi", "tests")
SETTINGS = {  # gRPC's verbosity is that of nadi's commands; it is read by the import
    "NADI_LIMITS": "", "OPENBLAS_NUM_THREADS": "1", "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE",
}  # fmt: skip
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, of prctl(2)
UNUSED_FILE = 500  # and all above it

popen = subprocess.Popen
execute = inspect.signature(popen._execute_child)  # type: ignore[attr-defined]


class Forked(subprocess.Popen[Any]):
    """A `Popen` that forks such programs, unless they need a Python with other options than the forking process."""

    _first: ClassVar[socket.socket | None] = None  # the link to a process without nadi
    _forking: ClassVar[dict[str, socket.socket]] = {}  # the links to its forks, with nadi, by their limits
    _turn = threading.Lock()

    def _execute_child(self, *given: Any) -> None:
        asked = execute.bind(self, *given).arguments
        args, env = asked["args"], os.environ if asked["env"] is None else asked["env"]
        if not _is_program(args, env) or asked["shell"] or asked["preexec_fn"] or asked["executable"]:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        ends = [asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        files = [mine if file == -1 else file for mine, file in enumerate(ends[::2][:1] + ends[3::2])]
        numbers = [0, 1, 2, *asked["pass_fds"]]
        group = "session" if asked["start_new_session"] else "group" if asked["process_group"] == 0 else ""
        folder = os.path.abspath(asked["cwd"] or ".")
        message = json.dumps([group, [*map(os.fspath, args[2:])], dict(env), folder, numbers]).encode()
        with self._turn:
            link = self._link(limits := env.get("NADI_LIMITS", ""))
            adopts = ctypes.CDLL(None, use_errno=True).prctl
            adopts(SUBREAPER, 1, 0, 0, 0)  # adopts processes whose parent ends
            try:
                socket.send_fds(link, [message], [*files, *asked["pass_fds"]])
                self.pid = int(link.recv(100))
                assert link.recv(100) == b"adopted"
            except (ValueError, ConnectionError):  # nadi can't be imported with these limits
                self._forking.pop(limits).close()
                super()._execute_child(*given)  # type: ignore[misc]
                return
            finally:
                adopts(SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

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


def fork_programs() -> None:
    """Fork programs from now on, in this process."""
    subprocess.Popen = Forked  # type: ignore[misc]


def _is_program(args: Any, env: Any) -> bool:
    if not isinstance(args, (list, tuple)) or [*args[:2]] != [sys.executable, "-m"]:
        return False
    same = all(env.get(name) == os.environ.get(name) for name in {*env, *os.environ} if name.startswith("PYTHON"))
    return same and str(args[2]).partition(".")[0] in PACKAGES


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _forking() -> socket.socket:
    """Start a process that forks others, and ends with this one; return the link to it."""
    ours, theirs = _pair()
    with theirs:
        popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **SETTINGS},
        ).returncode = 0  # it isn't awaited
    return ours


def _import(modules: str) -> None:
    for module in modules.split():
        import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "only a single-threaded process can fork safely"
    gc.freeze()


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
            try:
                _import(NADI)
            except ValueError:  # a limit is invalid, which the program itself has to report
                return
            _fork_programs(socket.socket(fileno=files[0]))
            return
        os.close(files[0])


def _fork_programs(link: socket.socket) -> None:
    while True:
        message, files, _, _ = socket.recv_fds(link, 1 << 20, 20)
        if not message:
            return
        middle = os.fork()
        if not middle:
            middle = os.getpid()
            if program := os.fork():
                link.send(b"%d" % program)
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.001)
            group, *how = json.loads(message)
            if group == "group":
                os.setpgid(0, 0)
            elif group == "session":
                os.setsid()
            link.send(b"adopted")
            link.close()
            _act_like_python(files, *how)
            return
        for file in files:
            os.close(file)
        os.waitpid(middle, 0)


def _act_like_python(
    files: list[int], args: list[str], environment: dict[str, str], folder: str, numbers: list[int]
) -> None:
    kept = [fcntl.fcntl(file, fcntl.F_DUPFD, UNUSED_FILE) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(kept, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    for name, mode, buffering in (("stdin", "r", -1), ("stdout", "w", -1), ("stderr", "w", 1)):
        former = getattr(sys, name)
        stream = open(former.fileno(), mode, buffering, former.encoding, former.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0], sys.argv[1:] = folder, args[1:]
    runpy.run_module(args[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _fork(socket.socket(fileno=int(sys.argv[1])))
