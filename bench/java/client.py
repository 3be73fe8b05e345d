"""Run a program with the official Java client: Maven downloads the client, as for the compatibility tests.

The programs use the client's default settings, unless stated otherwise.
"""

from __future__ import annotations

from pathlib import Path

from bench.measure import LeftOutError
from tests.compatibility.java_ready import ClientMissingError, classpath


class JavaMissingError(LeftOutError):
    """Java, Maven or the official client is unavailable here."""


def command(program: str, work: Path, heap: str = "1g") -> list[str]:
    """Return the command that starts a program, without its arguments.

    program: a file in this folder, such as "PlanWriter.java". work: a folder for the list of its libraries. heap:
    Java's maximum heap. Raises JavaMissingError.
    """
    try:
        libraries = classpath(work)
    except ClientMissingError as error:
        raise JavaMissingError(str(error)) from error
    options = ["-XX:+UseSerialGC", f"-Xmx{heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return ["java", *options, "-cp", libraries, str(Path(__file__).with_name(program))]
