"""Where the archive of Spark's classes lies, with which a session starts in half the time.

Java loads and verifies 15,000 classes until a session of Spark is up and has run a query. It can map them from a file
instead that it wrote at the end of an earlier run (class data sharing). `nadi spark archive` has it written, and
`nadi.spark.tuned` uses it where it is. Java itself checks that it fits, and does without it if not.
"""

from __future__ import annotations

import os
import shutil
from hashlib import blake2b
from pathlib import Path

QUIET = "-Xlog:cds*=off"  # what can't be archived, or doesn't fit, is nobody's concern


def archive_file() -> Path | None:
    """Where the archive for this Java and this pyspark is, or would be; None if there is no Java."""
    java, pyspark = _java(), _pyspark()
    if java is None or pyspark is None:
        return None
    known = f"{java} {java.stat().st_mtime_ns} {pyspark} {(pyspark / 'jars').stat().st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "nadi" / f"spark-{blake2b(known.encode(), digest_size=8).hexdigest()}.jsa"


def options() -> str:
    """What Java is told to use the archive; empty if there is none."""
    try:
        file = archive_file()
    except (OSError, RuntimeError):  # no home folder, or a pyspark without its jars
        return ""
    return f"-XX:SharedArchiveFile={file} {QUIET}" if file is not None and file.is_file() else ""


def _java() -> Path | None:
    """The one that Spark's own script would take."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    path = Path(found).resolve() if found else None
    return path if path is not None and path.is_file() else None


def _pyspark() -> Path | None:
    import pyspark

    home = os.environ.get("SPARK_HOME") or (pyspark.__file__ and Path(pyspark.__file__).parent)
    return Path(home).resolve() if home else None
