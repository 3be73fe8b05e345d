"""Downloads and compiles the JUnit tests in `java`; programs with the official client use the same libraries.

Maven's local repository and the compiled classes are shared by all processes of a user, but Maven locks neither:
concurrent downloads can leave an artifact incomplete. So one process at a time prepares them.
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
PAUSES_S = (1.0, 5.0)  # before each retry

# Maven's messages about missing artifacts, and about an unreachable registry.
LACKS = re.compile(
    r"in offline mode|could not (?:transfer|find|resolve)|could not be resolved|no versions available"
    r"|not found in .* during a previous attempt",
    re.IGNORECASE,
)
AWAY = re.compile(
    r"connection refused|unknown ?host|name resolution|name or service not known|unreachable|no route to host",
    re.IGNORECASE,
)
# Detect a hanging registry in seconds instead of half an hour.
PATIENCE = ("-Daether.connector.connectTimeout=10000", "-Daether.connector.requestTimeout=60000")


CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


class ClientMissingError(Exception):
    """Error for missing Java, Maven or official client; the message names it and the reason."""


class NotCompiled(Exception):
    """Error for a failed build with all artifacts present; the message is Maven's output."""


@functools.cache
def lacking() -> str:
    """Return why the Java tests can't run here; "" once they are downloaded and compiled."""
    return get_ready(PROJECT)


def classpath(work: Path) -> str:
    """Return the official client's libraries for `java -cp`. work: a scratch folder. Raises ClientMissingError."""
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
    """Prepare a folder with a pom.xml, as `lacking()`. goals: Maven goals whose artifacts are downloaded.

    A registry that refuses is retried, because it may recover soon; an unreachable one isn't.
    """
    with _locked():
        output = _missing_output(maven([*goals, "--offline"], project, DOWNLOAD_TIMEOUT_S))
        deadline = time.monotonic() + DOWNLOAD_TIMEOUT_S
        for pause_s in (0.0, *PAUSES_S):
            if not output:
                return ""
            time.sleep(pause_s)
            try:
                # --update-snapshots: retries artifacts that the registry lacked before
                online = [*goals, "--update-snapshots", *PATIENCE]
                output = _missing_output(maven(online, project, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return f"downloading from the Maven registry took longer than {DOWNLOAD_TIMEOUT_S} s"
            if AWAY.search(output):
                break
    return f"Maven can't download what the Java tests need: {_reason(output)}" if output else ""


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


def _missing_output(run: subprocess.CompletedProcess[str]) -> str:
    """Return Maven's output if artifacts are missing, otherwise ""."""
    if run.returncode == 0:
        return ""
    if not LACKS.search(run.stdout):
        raise NotCompiled(run.stdout[-4000:])
    return run.stdout


def _reason(output: str) -> str:
    """Return the line of Maven's output that names the missing artifact."""
    line = max((line for line in output.splitlines() if LACKS.search(line)), key=len)
    return line.removeprefix("[ERROR]").partition("-> [Help")[0].strip()


@contextmanager
def _locked() -> Iterator[None]:
    with open(Path(tempfile.gettempdir()) / f"nadi-maven-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
