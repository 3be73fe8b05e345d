"""Names of instances and of their workers, by which another instance on the same machine can tell that one is dead.

A name says where it is (host, start of the machine, process namespace) and which process it is (number and start time),
so that after a crash the next instance goes on at once instead of waiting until the dead readers have been silent for
long enough. Of readers elsewhere nothing is assumed.
"""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from functools import cache

from nadi.functions.progress import FunctionRecord, Instance


@cache
def this_instance() -> str:
    """The name of this process."""
    return f"{_place()}.{os.getpid()}.{_started(os.getpid())}"


def worker_name(number: int, part: int) -> str:
    """The name in the group of this process's worker `number`, which joined it for the `part`th time."""
    return f"{this_instance()}.w{number}.{part}"


def short_name(worker: str) -> str:
    """As people see it.

    >>> short_name("host-12ab34cd.77.1234.w3.1")
    'w3'
    """
    return worker.split(".")[-2] if worker.count(".") >= 4 else worker


def is_dead(worker: str) -> bool:
    """Whether a worker's process is known to have ended."""
    parts = worker.rsplit(".", 4)
    if len(parts) != 5 or parts[0] != _place() or not parts[1].isdigit():
        return False
    started = _started(int(parts[1]))
    return started != parts[2] and (started != "" or not _may_be_there(int(parts[1])))


def running_instances(record: FunctionRecord, now_ms: int) -> dict[str, Instance]:
    """A function's instances, without those that are known to be dead, or have been silent for too long."""
    return {
        name: instance
        for name, instance in record.instances.items()
        if not instance.is_gone(now_ms) and not is_dead(f"{name}.w0.0")
    }


@cache
def _place() -> str:
    marks = [socket.gethostname()]
    with suppress(OSError):
        marks.append(os.readlink("/proc/self/ns/pid"))
        with open("/proc/sys/kernel/random/boot_id") as file:
            marks.append(file.read())
    host = "".join(c if c.isalnum() or c == "-" else "-" for c in marks[0])[:60]
    return f"{host}-{hashlib.sha256(''.join(marks).encode()).hexdigest()[:8]}"


def _started(pid: int) -> str:
    """When a process was started, in ticks since the machine was; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _may_be_there(pid: int) -> bool:
    """Whether there is a process of which nothing can be seen here: another user's, say."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # it ended, and its parent has not looked yet
