"""One work of one peer, on a new server in a new folder: starts the peer's programs, and returns their measurements."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from bench.part import ROOT
from bench.peer_servers import Served, Server
from bench.peer_work import CHUNK, LARGE, Figures, Setting
from bench.process import FilledFiles, disk_bytes, peak_memory_bytes

SEGMENTS = 4
WORK_TIMEOUT_S = 180.0
COUNT = 400_000  # events of history
MADE_BY_NADI = "peer_nadi"


class WorkFailed(Exception):
    """A program of a peer failed, or took too long; the message has its last output."""


@dataclass(frozen=True, slots=True)
class PeerUnderTest:
    """A peer. short: its name in options. packages: to install. works: those it can do. made_by: the module that
    creates the stream, and fills in history. needs: raises Missing if the server is unavailable. count: of events of
    history. batched: writes lists of events."""

    short: str
    name: str
    idiom: str
    module: str
    packages: tuple[str, ...]
    server: Server
    works: tuple[str, ...]
    made_by: str
    needs: Callable[[], object] = lambda: None
    count: int = COUNT
    batched: bool = False


@dataclass(frozen=True, slots=True)
class Programs:
    """A peer's programs with one server."""

    peer: PeerUnderTest
    python: Path
    folder: Path
    setting: Setting
    timeout_s: float

    def run(self, work: str, setting: Setting | None = None) -> Figures:
        with self.start(work, setting) as program:
            return self.finish(program)

    def make(self, work: str, setting: Setting | None = None) -> Figures:
        """Create the stream with its module, in lists if that is nadi's."""
        made = setting or self.setting
        if self.peer.made_by != MADE_BY_NADI:
            return self.run(work, made)
        peer = replace(self.peer, module=MADE_BY_NADI)
        made = replace(made, batched=True)
        return replace(self, peer=peer, python=Path(sys.executable)).run(work, made)

    @contextmanager
    def start(self, work: str, setting: Setting | None = None) -> Iterator[subprocess.Popen[str]]:
        command = [str(self.python), "-m", f"bench.{self.peer.module}", work, (setting or self.setting).text()]
        with (self.folder / f"said-by-{work}").open("w") as said:
            program = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
            )
        with program:
            try:
                yield program
            finally:
                program.kill()

    def await_reading(self, program: subprocess.Popen[str]) -> None:
        """Wait until it reads, or is ready to start. Raises WorkFailed."""
        assert program.stdout is not None
        ready, _, _ = select.select([program.stdout], [], [], self.timeout_s)
        if not ready or program.stdout.readline() != "reading\n":
            self.finish(program)
            raise WorkFailed("its program ended before it read")

    def finish(self, program: subprocess.Popen[str], said: str | None = None) -> Figures:
        """Return its measurements once it ends. said: a line for its standard input. Raises WorkFailed."""
        try:
            printed, _ = program.communicate(said, timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            raise WorkFailed(f"not done after {self.timeout_s:.0f} s") from None
        if program.returncode:
            work = program.args[3] if isinstance(program.args, list) else ""
            lines = (self.folder / f"said-by-{work}").read_text().strip().splitlines() or ["it said nothing"]
            raise WorkFailed(f"{work} ended with {program.returncode}: {lines[-1]}")
        figures: Figures = json.loads(printed.splitlines()[-1])
        return figures


def measure(
    peer: PeerUnderTest,
    python: Path,
    work: str,
    data: Path | None = None,
    *,
    scale: float = 1.0,
    timeout_s: float = WORK_TIMEOUT_S,
) -> Figures:
    """Return its figures by name, and `memory`, the server's peak in MB. data: the parent folder, by default the
    system's folder for temporary files. scale: less than 1 for a small form. timeout_s: of each program. Raises
    WorkFailed, or the error of the server's start."""
    kind, _, segments = work.partition("-on-")
    count = max(int(peer.count * scale) // CHUNK, 1) * CHUNK
    setting = Setting("", int(segments or SEGMENTS), count, scale, peer.batched)
    folder = Path(tempfile.mkdtemp(prefix="nadi-peers-", dir=data))
    server = folder / "server"
    server.mkdir()
    programs = Programs(peer, python, folder, setting, timeout_s)
    try:
        if kind == "start":
            return _start(programs, server)
        with peer.server(server) as served:
            programs = replace(programs, setting=replace(setting, address=served.address))
            programs.make("prepare")
            found = _SPECIAL[kind](programs, served) if kind in _SPECIAL else programs.run(kind)
            return found | {"memory": peak_memory_bytes(served.pid) / 1e6}
    finally:
        rmtree(folder, ignore_errors=True)


def _start(programs: Programs, folder: Path) -> Figures:
    """Measure a start: the client's program runs before the server; the time includes creating the stream."""
    with programs.start("start") as program:
        programs.await_reading(program)
        with programs.peer.server(folder) as served:
            found = programs.finish(program, f"{served.address}\n")
    return {"seconds": found["at"] - served.started_s}


def _tail(programs: Programs, _: Served) -> Figures:
    with programs.start("tail-read") as reader:
        programs.await_reading(reader)
        return programs.run("tail-write") | programs.finish(reader)


def _read(programs: Programs, _: Served) -> Figures:
    programs.make("fill")
    return programs.run("read")


def _disk(programs: Programs, served: Served) -> Figures:
    """Return bytes written by the server's process per byte of events, and those of them that are zeros in new
    files."""
    stored = programs.setting.count * LARGE
    before = disk_bytes(served.pid)
    with ExitStack() as stack:
        filled = stack.enter_context(FilledFiles.watched(served.filled)) if served.filled else None
        programs.run("fill")
        served.settle()
        written = disk_bytes(served.pid) - before
        return {"times": written / stored} | ({"zeros": filled.bytes / stored} if filled else {})


_SPECIAL: dict[str, Callable[[Programs, Served], Figures]] = {"tail": _tail, "read": _read, "disk": _disk}
