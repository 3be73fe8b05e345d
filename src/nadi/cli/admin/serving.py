"""What `nadi up` starts, one of three: a server of a data folder, workers of one, a server of a cluster.

Each says where it listens, and tells systemd, if that waits for it, when it is ready and when it begins to stop.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nadi.cli.printing import say
from nadi.observe.systemd import tell_systemd

if TYPE_CHECKING:
    from nadi.standalone.clustered import ClusterServer
    from nadi.standalone.server import Server


def serve_folder(data: Path, doors: dict[str, Any]) -> None:
    import uvloop

    from nadi.limits import STOP_S
    from nadi.standalone.server import Server, serve

    def ready(server: Server) -> None:
        say(f"nadi is serving {data.resolve()}")
        if server.store.chunks.claim is not None:
            say(f"  chunks         {server.store.chunks.claim.url}")
        _say_doors(server)

    uvloop.run(serve(Server(data, **doors), ready, stopping=partial(_ending, STOP_S)))


def serve_workers(count: int, data: Path, doors: dict[str, Any], cache: Path | None, log_profile: str | None) -> None:
    import signal
    import threading

    from msgspec.structs import replace

    from nadi.standalone.embedded import Settings
    from nadi.standalone.workers import CONTAINERS_EACH, Workers

    until = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: until.set())
    settings = Settings(**doors, profile=log_profile)
    if settings.containers is None and not (data / "cluster.json").exists():
        settings = replace(settings, containers=CONTAINERS_EACH * count)
    with Workers(count, data, settings, cache) as workers:
        say(f"nadi is serving {data.resolve()}, with {count} workers")
        say(f"  controller     {workers.controller_uri}")
        say(f"  REST           {workers.rest_uri}")
        if (port := settings.rest_port) is not None and port > 0:
            say(f"  of each        REST ports {port + 1} to {port + count}, for its metrics")
        say("Press Ctrl-C to stop.")
        _is_ready(workers.controller_uri)
        workers.watch(until)
        _stopping()


def serve_store(url: str, settings: dict[str, Any]) -> None:
    import uvloop

    from nadi.limits import CLUSTER_STOP_S
    from nadi.standalone.clustered import ClusterServer
    from nadi.standalone.server import serve

    def ready(server: ClusterServer) -> None:
        cluster = server.cluster
        say(f"nadi is serving {url}")
        say(f"  server         {server.id}, with {len(server.store.containers)} of {cluster.containers} containers now")
        say(f"  cluster        {cluster.cluster}")
        _say_doors(server)

    uvloop.run(serve(ClusterServer(url, **settings), ready, stopping=partial(_ending, CLUSTER_STOP_S)))


def _say_doors(server: Server | ClusterServer) -> None:
    say(f"  controller     {server.controller_uri}")
    say(f"  REST           {server.rest_uri}")
    say(f"  segment store  {server.store_address[0]}:{server.store_address[1]}")
    say("Press Ctrl-C to stop.")
    _is_ready(server.controller_uri)


def _is_ready(controller_uri: str) -> None:
    tell_systemd(f"READY=1\nSTATUS=serving at {controller_uri}")


def _stopping() -> None:
    tell_systemd("STOPPING=1\nSTATUS=stopping")


def _ending(limit_s: float) -> None:
    """Likewise, and this process, which serves by itself, is to have ended by then."""
    from nadi.stopping import end_process_within

    _stopping()
    end_process_within(limit_s)
