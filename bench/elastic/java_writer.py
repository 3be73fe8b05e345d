"""The official Java client as the writer: Maven downloads it, as for the compatibility tests, and `java` runs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.compatibility.java_ready import DOWNLOAD_TIMEOUT_S, PROJECT, lacking, maven

PROGRAM = Path(__file__).with_name("java") / "PlanWriter.java"
CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


class JavaMissingError(Exception):
    """Java, Maven or the official client isn't to be had here."""


def command(work: Path) -> list[str]:
    """What starts the writer, but for its arguments; work: a folder for the list of its libraries."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        raise JavaMissingError("--writer java needs a JDK and Maven (`mvn`): install them, or leave it out")
    if reason := lacking():
        raise JavaMissingError(reason)
    file = work / "classpath"
    arguments = [CLASSPATH, f"-Dmdep.outputFile={file.absolute()}", "-Dmdep.includeScope=test"]
    try:
        done = maven(arguments, PROJECT, DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise JavaMissingError(
            f"Maven took longer than {DOWNLOAD_TIMEOUT_S} s to list the client's libraries"
        ) from None
    if done.returncode != 0:
        raise JavaMissingError(f"Maven can't list the client's libraries:\n{done.stdout[-2000:]}")
    options = ["-XX:+UseSerialGC", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return ["java", *options, "-cp", file.read_text().strip(), str(PROGRAM)]
