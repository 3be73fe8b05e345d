"""`nadi doctor`: diagnose this machine, a data folder's disk and a server, and suggest remedies."""

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
from nadi.cli.printing import Form, reporting_errors, show
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
    """Result of one check. state: a "note" works, but could work better. advice: the remedy, if any."""

    check: str
    state: Literal["ok", "note", "wrong"]
    result: str
    advice: str = ""


def doctor(
    data: Annotated[
        Path,
        typer.Option(help="Data folder, which doesn't have to exist yet. (default: nadi-data)", show_default=False),
    ] = Path("nadi-data"),
    controller: Annotated[
        str | None,
        typer.Option(
            envvar="NADI_CONTROLLER",
            help=f"Address of a server that must be running. (default: {DEFAULT_URI}, if one is running)",
            show_default=False,
        ),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            envvar="NADI_REST",
            help="REST address of the server. (default: as reported by the controller, or port 9091 of its host)",
            show_default=False,
        ),
    ] = None,
    trust_store: TrustStore = None,
    form: Form = Form.TABLE,
) -> None:
    """Check this machine, the data folder's disk and the server, and suggest remedies.

    Exits with code 1 if something is wrong. The disk check writes a temporary file for two seconds.
    """
    with reporting_errors(OSError):
        findings = [_open_files(), *check_disk(data), *check_server(controller, rest, trust_store)]
    show([finding._asdict() for finding in findings], list(Finding._fields), form=form, empty="")
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = f"{soft:,} now, {'no limit' if hard == resource.RLIM_INFINITY else f'{hard:,} at most'}"
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH_FILES:
        state: Literal["wrong", "note"] = "wrong" if hard < _FEW_FILES else "note"
        return Finding("open files", state, result, "raise the limit (ulimit -n, or LimitNOFILE of systemd) to 65536")
    return Finding("open files", "ok", f"{result}; a server raises its limit to the maximum")


# --- the disk -------------------------------------------------------------------------------------


def check_disk(data: Path) -> list[Finding]:
    """Check a data folder's disk. If the folder doesn't exist yet, check its nearest existing parent."""
    if data.exists() and not data.is_dir():
        return [Finding("data folder", "wrong", f"{data} is not a folder", "choose another one with --data")]
    folder = data.resolve()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    where = "exists" if folder == data.resolve() else f"will be created in {folder}"
    findings = [Finding("data folder", "ok", f"{data} {where}"), _free_space(folder), _file_system(folder)]
    try:
        return [*findings, _speed(folder)]
    except OSError as error:
        advice = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable for this user"
        result = f"can't write to {folder}: {error.strerror or error}"
        return [
            Finding("data folder", "wrong", result, f"{advice}, or choose another folder with --data"),
            *findings[1:],
        ]


def _free_space(folder: Path) -> Finding:
    total, _, free = shutil.disk_usage(folder)
    result = f"{free / _GIB:,.1f} of {total / _GIB:,.1f} GiB are free"
    if free < _LEAST_BYTES:
        advice = "free some space: a server needs half a GiB to start, and writes fail on a full disk"
        return Finding("free space", "wrong", result, advice)
    if free < total * _LOW_SHARE:
        return Finding("free space", "note", result, "free some space, or limit retention (docs/retention.md)")
    return Finding("free space", "ok", result)


def _file_system(folder: Path) -> Finding:
    kind, longest = "", -1
    with suppress(OSError):  # this file exists only on Linux
        for line in _MOUNTS.read_text().splitlines():
            mount, _, system = line.partition(" - ")
            at = Path(mount.split()[4].replace("\\040", " "))
            if folder.is_relative_to(at) and len(at.parts) >= longest:
                kind, longest = system.split()[0], len(at.parts)
    if kind in _IN_MEMORY:
        return Finding("file system", "wrong", f"{kind} (memory)", "data is lost on reboot: use a disk")
    if kind in _OVER_A_NETWORK or kind.startswith("fuse"):
        advice = "the file server must honour fsync; a local disk is faster"
        return Finding("file system", "note", kind, advice)
    if kind == "overlay":
        advice = "data is lost with the container: mount a volume"
        return Finding("file system", "note", kind, advice)
    return Finding("file system", "ok", kind or "unknown")


def _speed(folder: Path) -> Finding:
    p50_ms, p99_ms, count = sync_times(folder)
    result = f"p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, of {count:,} writes of {_WRITE_BYTES >> 10} KiB"
    if p50_ms > _SLOW_MS:
        advice = "each acknowledgement waits for a sync: use a solid-state disk, which takes less than 1 ms"
        return Finding("fdatasync", "note", result, advice)
    if p99_ms > _STALL_MS:
        advice = "some acknowledgements will take that long: check for other programs that use the disk"
        return Finding("fdatasync", "note", result, advice)
    return Finding("fdatasync", "ok", result)


def sync_times(folder: Path) -> tuple[float, float, int]:
    """Measure small writes, each with an fdatasync, as a log does them; return p50 and p99 in ms, and their number."""
    sync = getattr(os, "fdatasync", os.fsync)  # macOS lacks fdatasync
    times_s: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        fd, block = file.fileno(), os.urandom(_WRITE_BYTES)
        file.write(bytes(_FILE_BYTES))
        file.flush()
        os.fsync(fd)
        end = time.perf_counter() + _SYNCED_S
        while (start := time.perf_counter()) < end and len(times_s) < _MOST_SYNCS:
            os.pwrite(fd, block, len(times_s) * _WRITE_BYTES % _FILE_BYTES)
            sync(fd)
            times_s.append(time.perf_counter() - start)
    times_s.sort()
    return times_s[len(times_s) // 2] * 1000, times_s[int(len(times_s) * 0.99)] * 1000, len(times_s)


# --- the server -----------------------------------------------------------------------------------


def check_server(
    controller: str | None,
    rest: str | None,
    trust_store: str | None,
    store: str = f"{DEFAULT_HOST}:{DEFAULT_STORE_PORT}",
) -> list[Finding]:
    """Check a server. controller: it must be running; None: check the default address, or that its ports are free.

    store: host:port at which a server of this machine would listen.
    """
    from nadi.cli.cluster.rest_client import RestClient

    uri = controller or DEFAULT_URI
    controller_address, rest = urlsplit(uri).netloc, rest or _rest_address(uri, trust_store)
    rest_address = urlsplit(rest).netloc
    if not _answers(controller_address):
        if controller is not None:
            advice = "start it (nadi up), or check for a firewall"
            first = Finding("controller", "wrong", f"no server is listening at {controller_address}", advice)
        else:
            result = f"{controller_address} is free for a server: nadi up starts one"
            first = Finding("controller", "ok", result)
        return [first, _port("REST", rest_address), _port("store", store)]
    first = _controller(uri, controller_address, trust_store)
    if not _answers(rest_address):
        advice = (
            "health and metrics are unavailable: start the server with --rest-port, or give its address with --rest"
        )
        return [first, Finding("REST", "note", f"no server is listening at {rest_address}", advice)]
    try:
        return [first, *check_rest(RestClient(rest, trust_store))]
    except AccessDeniedError as error:
        return [first, Finding("health", "note", f"requires permission: {error}", _CREDENTIALS)]
    except NadiError as error:
        advice = "check that this is nadi's REST port, or give the address with --rest"
        return [first, Finding("REST", "wrong", str(error), advice)]


def _rest_address(controller: str, trust_store: str | None) -> str:
    """Return the REST address of a controller's server: the port that the controller reports, or the default."""
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
        advice = f"stop it, or choose another port with `nadi up --{name.lower()}-port`"
        return Finding(name, "wrong", f"another program is listening at {address}", advice)
    return Finding(name, "ok", f"{address} is free")


def _controller(uri: str, address: str, trust_store: str | None) -> Finding:
    from nadi.client import StreamManager

    start = time.perf_counter()
    try:
        with StreamManager(uri, trust_store=trust_store, timeout=_ANSWER_S) as manager:
            scopes = manager.list_scopes()
    except AccessDeniedError as error:
        return Finding("controller", "wrong", f"{address} denies access: {error}", _CREDENTIALS)
    except NadiError as error:
        advice = "check that this is nadi's controller, and whether it uses tcp:// or tls://"
        return Finding("controller", "wrong", f"{address} doesn't answer: {error}", advice)
    duration_ms = (time.perf_counter() - start) * 1000
    count = sum(not scope.startswith("_") for scope in scopes)
    return Finding("controller", "ok", f"{address} answers in {duration_ms:.0f} ms; {count:,} scopes")


def check_rest(client: RestClient) -> list[Finding]:
    """Check a server's clock, version and health over REST; NadiError if it doesn't answer."""
    from nadi.observe.health import Component

    start = time.time()
    ping = client.text(f"{client.first}/ping", within_s=_ANSWER_S)
    clock = _clock(ping.date, (start + time.time()) / 2)
    metrics = client.text(f"{client.first}/metrics", within_s=_ANSWER_S).body.decode()
    health = client.request("GET", f"{client.first}/v1/health", Component, within_s=_ANSWER_S)
    return [clock, _version(metrics), _health(health)]


def _clock(date: str, here_s: float) -> Finding:
    """Compare the clocks. date: HTTP's `Date`, truncated to seconds."""
    from email.utils import parsedate_to_datetime

    try:
        ahead_s = parsedate_to_datetime(date).timestamp() + 0.5 - here_s
    except ValueError:
        result, advice = "the server doesn't send a Date header", "check for a proxy that removes it"
        return Finding("clock", "note", result, advice)
    if abs(ahead_s) <= _CLOCK_NOTE_S:
        return Finding("clock", "ok", "the server's clock matches this machine's within seconds")
    result = f"the server's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    advice = "synchronize both with a time server: times of cuts, leases and tokens use the server's clock"
    return Finding("clock", "wrong" if abs(ahead_s) > _CLOCK_WRONG_S else "note", result, advice)


def _version(metrics: str) -> Finding:
    match = re.search(r'^nadi_build_info\{[^}]*\bversion="([^"]*)"', metrics, re.MULTILINE)
    if match is None:
        return Finding(
            "version", "note", "unknown: the server doesn't report it", "in a cluster, check each server with --rest"
        )
    if match[1] == __version__:
        return Finding("version", "ok", f"{match[1]} on both sides")
    advice = "use the same version on both sides, or the newer one on the server"
    return Finding("version", "note", f"{match[1]} on the server, {__version__} here", advice)


def _health(health: Component) -> Finding:
    unhealthy = [part for part in _leaves(health) if part.status.value != "UP" or not part.readiness]
    if not unhealthy:
        return Finding("health", "ok", "all components are up and ready")
    summary = "; ".join(f"{part.name} is {part.status.value}{_why(part)}" for part in unhealthy[:5])
    more = f"; and {len(unhealthy) - 5} more" if len(unhealthy) > 5 else ""
    return Finding("health", "wrong", summary + more, "see the server's log and docs/operations.md")


def _leaves(component: Component) -> list[Component]:
    return (
        [leaf for child in component.children.values() for leaf in _leaves(child)]
        if component.children
        else [component]
    )


def _why(component: Component) -> str:
    details = ", ".join(
        f"{name}: {value}" for name, value in component.details.items() if value not in (None, "", 0, False)
    )
    return f" ({details[:200]})" if details else ""
