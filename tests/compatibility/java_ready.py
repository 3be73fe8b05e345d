"""What the JUnit tests in `java` need, downloaded and compiled; programs with the official client use its libraries.

Maven's local repository and the compiled classes are shared by all processes of this user, and Maven guards neither:
two that download at once can leave an artifact half known. So one process at a time gets ready.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).with_name("java")
DOWNLOAD_TIMEOUT_S = 400  # some 200 files of 40 MB
PAUSES_S = (1.0, 5.0)  # before each further try

# What Maven says of what it lacks, and of a registry that doesn't answer at all.
LACKS = re.compile(
    r"in offline mode|could not (?:transfer|find|resolve)|could not be resolved|no versions available"
    r"|not found in .* during a previous attempt",
    re.IGNORECASE,
)
AWAY = re.compile(
    r"connection refused|unknown ?host|name resolution|name or service not known|unreachable|no route to host",
    re.IGNORECASE,
)
# A registry that hangs is found out in seconds rather than in half an hour.
PATIENCE = ("-Daether.connector.connectTimeout=10000", "-Daether.connector.requestTimeout=60000")


CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


class ClientMissingError(Exception):
    """Java, Maven or the official client isn't to be had here; the text says which, and why."""


class NotCompiled(Exception):
    """Maven has all it needs and doesn't get through; the text is what it said."""


@functools.cache
def lacking() -> str:
    """Why the Java tests can't run here; "" once all they need is downloaded and they are compiled."""
    return get_ready(PROJECT)


def classpath(work: Path) -> str:
    """The official client's libraries, for `java -cp`. work: a folder for their list. Raises ClientMissingError."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        raise ClientMissingError("the official Java client needs a JDK and Maven (`mvn`), which are not installed")
    if reason := lacking():
        raise ClientMissingError(reason)
    file = work / "classpath"
    arguments = [CLASSPATH, f"-Dmdep.outputFile={file.absolute()}", "-Dmdep.includeScope=test"]
    try:
        done = maven(arguments, PROJECT, DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ClientMissingError(
            f"Maven took longer than {DOWNLOAD_TIMEOUT_S} s to list the client's libraries"
        ) from None
    if done.returncode != 0:
        raise ClientMissingError(f"Maven can't list the client's libraries:\n{done.stdout[-2000:]}")
    return file.read_text().strip()


def get_ready(project: Path, goals: Sequence[str] = ("test", "-DskipTests")) -> str:
    """`lacking()` for a folder with a pom.xml; goals: what Maven is to do, for which all it needs is downloaded.

    A registry that refuses is asked again, for it may do so for a moment only; one that is away is not.
    """
    with _alone():
        said = _said(maven([*goals, "--offline"], project, DOWNLOAD_TIMEOUT_S))
        deadline = time.monotonic() + DOWNLOAD_TIMEOUT_S
        for pause_s in (0.0, *PAUSES_S):
            if not said:
                return ""
            time.sleep(pause_s)
            try:
                # --update-snapshots: what the registry was not to have is asked for again
                online = [*goals, "--update-snapshots", *PATIENCE]
                said = _said(maven(online, project, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return f"downloading from the Maven registry took longer than {DOWNLOAD_TIMEOUT_S} s"
            if AWAY.search(said):
                break
    return f"Maven can't download what the Java tests need: {_reason(said)}" if said else ""


def maven(arguments: list[str], project: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run Maven in `project`; raises subprocess.TimeoutExpired."""
    options = [os.environ.get("MAVEN_OPTS", ""), "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]  # starts sooner
    return subprocess.run(
        ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", *arguments],
        cwd=project,
        env={**os.environ, "MAVEN_OPTS": " ".join(options)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=max(1.0, timeout_s),
        check=False,
    )


def _said(run: subprocess.CompletedProcess[str]) -> str:
    """What Maven said of what it lacks, "" for nothing."""
    if run.returncode == 0:
        return ""
    if not LACKS.search(run.stdout):
        raise NotCompiled(run.stdout[-4000:])
    return run.stdout


def _reason(said: str) -> str:
    """The line of Maven's many that names what it lacks."""
    line = max((line for line in said.splitlines() if LACKS.search(line)), key=len)
    return line.removeprefix("[ERROR]").partition("-> [Help")[0].strip()


@contextmanager
def _alone() -> Iterator[None]:
    with open(Path(tempfile.gettempdir()) / f"nadi-maven-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
