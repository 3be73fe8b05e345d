"""`nadi doctor`: what is wrong with this machine, a data folder's disk, or a server, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import typer

from nadi import __version__
from nadi.cli.options import TrustStore
from nadi.cli.printing import Form, errors_told, show
from nadi.defaults import DEFAULT_HOST, DEFAULT_REST_PORT, DEFAULT_STORE_PORT, DEFAULT_URI
from nadi.errors import AccessDeniedError, NadiError

if TYPE_CHECKING:
    from nadi.cli.cluster.rest_client import RestClient
    from nadi.observe.health import Component

_GIB = 1 << 30
_LEAST_BYTES, _LOW_SHARE = _GIB, 0.1
_SYNCED_S, _MOST_SYNCS, _WRITE_BYTES, _FILE_BYTES = 2.0, 100_000, 4096, 16 << 20
_SLOW_MS, _STALL_MS = 10.0, 100.0
_IN_MEMORY = {"tmpfs", "ramfs"}
_OVER_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs"}
_MOUNTS = Path("/proc/self/mountinfo")
_FEW_FILES, _ENOUGH_FILES = 1024, 8192
_CONNECT_S, _ANSWER_S = 1.0, 5.0
_CLOCK_NOTE_S, _CLOCK_WRONG_S = 3.0, 60.0
_CREDENTIALS = "set name and password, or a token, in the environment (docs/security.md)"


class Finding(NamedTuple):
    """state: a "note" works, though not as well as it could. advice: what to do, if anything."""

    check: str
    state: Literal["ok", "note", "wrong"]
    result: str
    advice: str = ""


def doctor(
    data: Annotated[
        Path, typer.Option(help="The data folder, or where it is to be. [default: nadi-data]", show_default=False)
    ] = Path("nadi-data"),
    controller: Annotated[
        str | None,
        typer.Option(
            envvar="NADI_CONTROLLER",
            help=f"The server that should be there. [default: see whether one is at {DEFAULT_URI}]",
            show_default=False,
        ),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            envvar="NADI_REST",
            help="The server's REST address. [default: what the controller says, else port 9091 of its host]",
            show_default=False,
        ),
    ] = None,
    trust_store: TrustStore = None,
    form: Form = Form.TABLE,
) -> None:
    """Check this machine, the data folder's disk and the server, and say what to do; exits with code 1 if something is
    wrong.

    It writes to the disk for two seconds, to a file of its own.
    """
    with errors_told(OSError):
        findings = [_open_files(), *check_disk(data), *check_server(controller, rest, trust_store)]
    show([one._asdict() for one in findings], list(Finding._fields), form=form, empty="")
    if any(one.state == "wrong" for one in findings):
        raise typer.Exit(1)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = f"{soft:,} now, {'no limit' if hard == resource.RLIM_INFINITY else f'{hard:,} at most'}"
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH_FILES:
        state: Literal["wrong", "note"] = "wrong" if hard < _FEW_FILES else "note"
        return Finding("open files", state, result, "raise the limit (ulimit -n, or LimitNOFILE of systemd) to 65536")
    return Finding("open files", "ok", f"{result}; a server takes all it may")


# --- the disk -------------------------------------------------------------------------------------


def check_disk(data: Path) -> list[Finding]:
    """data: needn't exist yet; the nearest folder above it that does is checked instead."""
    if data.exists() and not data.is_dir():
        return [Finding("data folder", "wrong", f"{data} is not a folder", "give another one with --data")]
    folder = data.resolve()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    where = "exists" if folder == data.resolve() else f"will be created in {folder}"
    findings = [Finding("data folder", "ok", f"{data} {where}"), _room(folder), _file_system(folder)]
    try:
        return [*findings, _speed(folder)]
    except OSError as error:
        advice = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable for this user"
        result = f"{folder} can't be written: {error.strerror or error}"
        return [Finding("data folder", "wrong", result, f"{advice}, or give another folder with --data"), *findings[1:]]


def _room(folder: Path) -> Finding:
    total, _, free = shutil.disk_usage(folder)
    result = f"{free / _GIB:,.1f} of {total / _GIB:,.1f} GiB are free"
    if free < _LEAST_BYTES:
        advice = "make room: a server needs half a GiB to start with, and writers stop without"
        return Finding("free room", "wrong", result, advice)
    if free < total * _LOW_SHARE:
        return Finding("free room", "note", result, "make room before it is full: see retention, docs/retention.md")
    return Finding("free room", "ok", result)


def _file_system(folder: Path) -> Finding:
    kind, longest = "", -1
    with suppress(OSError):  # there is no such table outside Linux
        for line in _MOUNTS.read_text().splitlines():
            mount, _, system = line.partition(" - ")
            at = Path(mount.split()[4].replace("\\040", " "))
            if folder.is_relative_to(at) and len(at.parts) >= longest:
                kind, longest = system.split()[0], len(at.parts)
    if kind in _IN_MEMORY:
        return Finding("file system", "wrong", f"{kind}, which is memory", "it is lost at a restart: use a disk")
    if kind in _OVER_A_NETWORK or kind.startswith("fuse"):
        advice = "its server must keep what was synced; a disk of this machine is faster"
        return Finding("file system", "note", kind, advice)
    if kind == "overlay":
        advice = "a container's own layer goes with the container: give it a volume"
        return Finding("file system", "note", kind, advice)
    return Finding("file system", "ok", kind or "unknown")


def _speed(folder: Path) -> Finding:
    p50_ms, p99_ms, count = sync_times(folder)
    result = f"p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, of {count:,} writes of {_WRITE_BYTES >> 10} KiB"
    if p50_ms > _SLOW_MS:
        advice = "each acknowledgement waits for one: a solid-state disk takes below 1 ms"
        return Finding("fdatasync", "note", result, advice)
    if p99_ms > _STALL_MS:
        advice = "some acknowledgements will take that long: look for what else uses the disk"
        return Finding("fdatasync", "note", result, advice)
    return Finding("fdatasync", "ok", result)


def sync_times(folder: Path) -> tuple[float, float, int]:
    """p50 and p99 in ms, and the number, of small writes to a temporary file, each followed by fdatasync as a log's."""
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the other
    took_s: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        fd, block = file.fileno(), os.urandom(_WRITE_BYTES)
        file.write(bytes(_FILE_BYTES))
        file.flush()
        os.fsync(fd)
        end = time.perf_counter() + _SYNCED_S
        while (start := time.perf_counter()) < end and len(took_s) < _MOST_SYNCS:
            os.pwrite(fd, block, len(took_s) * _WRITE_BYTES % _FILE_BYTES)
            sync(fd)
            took_s.append(time.perf_counter() - start)
    took_s.sort()
    return took_s[len(took_s) // 2] * 1000, took_s[int(len(took_s) * 0.99)] * 1000, len(took_s)


# --- the server -----------------------------------------------------------------------------------


def check_server(
    controller: str | None,
    rest: str | None,
    trust_store: str | None,
    store: str = f"{DEFAULT_HOST}:{DEFAULT_STORE_PORT}",
) -> list[Finding]:
    """controller: the server must be there; None: at the default address it may be, and its ports are free if it isn't.

    store: host:port at which a server of this machine would listen.
    """
    from nadi.cli.cluster.rest_client import RestClient

    uri = controller or DEFAULT_URI
    address, rest = urlsplit(uri).netloc, rest or _rest_beside(uri, trust_store)
    rest_address = urlsplit(rest).netloc
    if not _answers(address):
        if controller is not None:
            advice = "start it (nadi up), or see whether a firewall lets nobody through"
            first = Finding("controller", "wrong", f"nobody listens at {address}", advice)
        else:
            result = f"the port is free, no server is at {address}: nadi up starts one"
            first = Finding("controller", "ok", result)
        return [first, _port("REST", rest_address), _port("store", store)]
    first = _controller(uri, address, trust_store)
    if not _answers(rest_address):
        advice = "without it neither health nor metrics can be seen: start the server with --rest-port, or give --rest"
        return [first, Finding("REST", "note", f"nobody listens at {rest_address}", advice)]
    try:
        return [first, *check_rest(RestClient(rest, trust_store))]
    except AccessDeniedError as error:
        return [first, Finding("health", "note", f"not to be seen by everybody: {error}", _CREDENTIALS)]
    except NadiError as error:
        advice = "see whether that is nadi's REST port, or give it with --rest"
        return [first, Finding("REST", "wrong", str(error), advice)]


def _rest_beside(controller: str, trust_store: str | None) -> str:
    """The REST address of a controller's server: at the port that the controller says, or the default one."""
    from nadi.client import StreamManager
    from nadi.client.blocking.face import inside
    from nadi.client.control.security import split_uri
    from nadi.client.manager.streams import stores_of

    address, is_secure = split_uri(controller)
    port = 0
    if _answers(address):
        # If this fails, the request to the default port reports why.
        with suppress(NadiError), StreamManager(controller, trust_store=trust_store, timeout=_ANSWER_S) as manager:
            thread, core = inside(manager)
            port = thread.run(stores_of(core).controller.rest_port())
    host = address.rpartition(":")[0]
    return f"{'https' if is_secure else 'http'}://{host}:{port or DEFAULT_REST_PORT}"


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _port(name: str, address: str) -> Finding:
    if _answers(address):
        advice = f"stop it, or give nadi up another --{name.lower()}-port"
        return Finding(name, "wrong", f"another program listens at {address}", advice)
    return Finding(name, "ok", f"the port is free: {address}")


def _controller(uri: str, address: str, trust_store: str | None) -> Finding:
    from nadi.client import StreamManager

    start = time.perf_counter()
    try:
        with StreamManager(uri, trust_store=trust_store, timeout=_ANSWER_S) as manager:
            scopes = manager.list_scopes()
    except AccessDeniedError as error:
        return Finding("controller", "wrong", f"{address} lets nobody in so: {error}", _CREDENTIALS)
    except NadiError as error:
        advice = "see whether that is nadi's controller, and whether it is tcp:// or tls://"
        return Finding("controller", "wrong", f"{address} gives no answer: {error}", advice)
    took_ms = (time.perf_counter() - start) * 1000
    count = sum(not scope.startswith("_") for scope in scopes)
    return Finding("controller", "ok", f"{address} answers in {took_ms:.0f} ms, and has {count:,} scopes")


def check_rest(client: RestClient) -> list[Finding]:
    """The clock, version and health of a server, from its REST interface; NadiError if it doesn't answer."""
    from nadi.observe.health import Component

    start = time.time()
    ping = client.text(f"{client.first}/ping", within_s=_ANSWER_S)
    clock = _clock(ping.date, (start + time.time()) / 2)
    metrics = client.text(f"{client.first}/metrics", within_s=_ANSWER_S).body.decode()
    health = client.asked("GET", f"{client.first}/v1/health", Component, within_s=_ANSWER_S)
    return [clock, _version(metrics), _health(health)]


def _clock(date: str, here_s: float) -> Finding:
    """date: of HTTP, in whole seconds, cut off."""
    from email.utils import parsedate_to_datetime

    try:
        ahead_s = parsedate_to_datetime(date).timestamp() + 0.5 - here_s
    except ValueError:
        result, advice = "the server doesn't say what time it is", "something between may leave that out"
        return Finding("clock", "note", result, advice)
    if abs(ahead_s) <= _CLOCK_NOTE_S:
        return Finding("clock", "ok", "the server's is the same as this machine's, to a second")
    result = f"the server's is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    advice = "let both follow a time server: times of cuts, leases and tokens go by the server's clock"
    return Finding("clock", "wrong" if abs(ahead_s) > _CLOCK_WRONG_S else "note", result, advice)


def _version(metrics: str) -> Finding:
    there = re.search(r'^nadi_build_info\{[^}]*\bversion="([^"]*)"', metrics, re.MULTILINE)
    if there is None:
        return Finding("version", "note", "the server doesn't say", "on a cluster, ask each server: --rest")
    if there[1] == __version__:
        return Finding("version", "ok", f"{there[1]}, here and there")
    advice = "use the same version on both sides, or the newer one on the server's"
    return Finding("version", "note", f"{there[1]} on the server, {__version__} here", advice)


def _health(health: Component) -> Finding:
    ill = [one for one in _leaves(health) if one.status.value != "UP" or not one.readiness]
    if not ill:
        return Finding("health", "ok", "all parts of the server are up and ready")
    said = "; ".join(f"{one.name} is {one.status.value}{_why(one)}" for one in ill[:5])
    more = f"; and {len(ill) - 5} more" if len(ill) > 5 else ""
    return Finding("health", "wrong", said + more, "see the server's log, and docs/operations.md")


def _leaves(one: Component) -> list[Component]:
    return [leaf for child in one.children.values() for leaf in _leaves(child)] if one.children else [one]


def _why(one: Component) -> str:
    details = ", ".join(f"{name}: {value}" for name, value in one.details.items() if value not in (None, "", 0, False))
    return f" ({details[:200]})" if details else ""
