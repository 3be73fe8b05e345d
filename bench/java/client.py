"""How a program with the official Java client is run: Maven downloads the client, as for the compatibility tests.

The programs leave the client's settings as they are shipped, unless they are told otherwise.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.measure import LeftOutError
from tests.compatibility.java_ready import DOWNLOAD_TIMEOUT_S, PROJECT, lacking, maven

CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


class JavaMissingError(LeftOutError):
    """Java, Maven or the official client isn't to be had here."""


def command(program: str, work: Path, heap: str = "1g") -> list[str]:
    """What starts a program, but for its arguments. program: the name of a file in this folder, "PlanWriter.java".
    work: a folder for the list of the program's libraries. heap: Java's memory for objects at most. Raises
    JavaMissingError.
    """
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        raise JavaMissingError("the official Java client needs a JDK and Maven (`mvn`), which are not installed")
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
    options = ["-XX:+UseSerialGC", f"-Xmx{heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return ["java", *options, "-cp", file.read_text().strip(), str(Path(__file__).with_name(program))]
