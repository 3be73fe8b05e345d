"""`spark.python.daemon.module` of `nadi.spark.tuned`: Spark's daemon of workers, with pyspark as it is installed.

Spark puts `pyspark.zip`, the sources of pyspark, before all else on the path of each Python program that it starts.
Nothing compiled is kept of what comes from a zip, so each compiles pyspark anew, half a second of a core. Where the zip
lies within an installed pyspark, the installed one is the same, and compiled. A package by itself, so that nothing of
nadi is imported with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_ZIP = ("pyspark", "python", "lib", "pyspark.zip")


def without_zip(path: Sequence[str]) -> list[str]:
    """The path, with an installed pyspark in place of its zip; unchanged if there is no such pair.

    >>> without_zip(["", "/elsewhere/pyspark.zip"])
    ['', '/elsewhere/pyspark.zip']
    """
    found: list[str] = []
    for entry in path:
        if Path(entry).parts[-len(_ZIP) :] != _ZIP:
            found.append(entry)
            continue
        installed = Path(entry).parents[len(_ZIP) - 1]
        if not (installed / "pyspark" / "__init__.py").is_file():
            found.append(entry)
        elif str(installed) not in path:
            found.append(str(installed))
    return found
