"""How a program with the official Java client is run: Maven downloads the client, as for the compatibility tests.

The programs leave the client's settings as they are shipped, unless they are told otherwise.
"""

from __future__ import annotations

from pathlib import Path

from bench.measure import LeftOutError
from tests.compatibility.java_ready import ClientMissingError, classpath


class JavaMissingError(LeftOutError):
    """Java, Maven or the official client isn't to be had here."""


def command(program: str, work: Path, heap: str = "1g") -> list[str]:
    """What starts a program, but for its arguments. program: the name of a file in this folder, "PlanWriter.java".
    work: a folder for the list of the program's libraries. heap: Java's memory for objects at most. Raises
    JavaMissingError.
    """
    try:
        libraries = classpath(work)
    except ClientMissingError as error:
        raise JavaMissingError(str(error)) from error
    options = ["-XX:+UseSerialGC", f"-Xmx{heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return ["java", *options, "-cp", libraries, str(Path(__file__).with_name(program))]
