"""Settings for Spark on one machine: they make small micro-batches two to three times as fast, reads 10% faster, and
reduce the time to a new session's first row by a third.

Java loads and verifies 15,000 classes before a session of Spark has run its first query. Class data sharing maps them
from an archive written at the end of an earlier run. `nadi spark archive` writes it, and a tuned session uses it. Java
verifies that the archive fits, and ignores it otherwise.
"""

from __future__ import annotations

import os
import shutil
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, TypeVar

QUIET = "-Xlog:cds*=off"  # no log lines about classes that can't be archived, or an unfit archive
_JAVA = "spark.driver.extraJavaOptions"
TUNED = {
    "spark.python.unix.domain.socket.enabled": "true",
    # writes each checkpoint file by rename on the local disk, without the file system abstraction
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Arrow checks reference counts and bounds at each access to a value: a sixth of the time of a batch read. The
    # parallel collector slows code down less than the default one: a session's second read takes 0.7 of the time.
    _JAVA: ("-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false -XX:+UseParallelGC"),
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",  # 200, the default, costs seconds per batch
}


class _Builder(Protocol):
    def config(self, key: str, value: str, /) -> object: ...


_B = TypeVar("_B", bound=_Builder)


def tuned(builder: _B, *, java_options: str = "") -> _B:
    """Apply TUNED to a `SparkSession.builder` and return it; later settings take precedence.

    java_options: for the driver's Java in addition, such as "-Xss4m"; setting `spark.driver.extraJavaOptions` later
    would replace all of them.

    `nadi-spark-python`, this Python with a precompiled pyspark, runs Spark's Python programs, unless PYSPARK_PYTHON is
    set, and Spark's ports are bound to loopback unless SPARK_LOCAL_IP is set. Java loads Spark's classes from the
    archive of `nadi spark archive`, if it exists.

    For a single machine only: a checkpoint on S3 or HDFS needs that file system's own checkpoint manager, and a
    cluster needs an address that its executors can reach.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark makes each of its Python programs import pyspark from a zip, which compiles it every time: half a second of
    # CPU, five times before the first row. `nadi-spark-python` imports the installed pyspark instead.
    wrapper = Path(sys.executable).with_name("nadi-spark-python")
    python = str(wrapper) if os.access(wrapper, os.X_OK) else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)  # the default, the first python3 on the PATH, may lack nadi
    for key, value in TUNED.items():
        builder.config(key, " ".join(filter(None, [value, archive_options(), java_options])) if key == _JAVA else value)
    return builder


def archive_options() -> str:
    """Return Java's options to use the archive; empty if it doesn't exist."""
    try:
        file = archive_file()
    except (OSError, RuntimeError):  # the home folder, or pyspark's jars, are missing
        return ""
    return f"-XX:SharedArchiveFile={file} {QUIET}" if file is not None and file.is_file() else ""


def archive_file() -> Path | None:
    """Return the path of the archive for this Java and this pyspark; None if Java wasn't found."""
    import pyspark

    java = java_program()
    spark_home = os.environ.get("SPARK_HOME") or (pyspark.__file__ and Path(pyspark.__file__).parent)
    if java is None or not spark_home:
        return None
    spark = Path(spark_home).resolve()
    fingerprint = f"{java} {java.stat().st_mtime_ns} {spark} {(spark / 'jars').stat().st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "nadi" / f"spark-{blake2b(fingerprint.encode(), digest_size=8).hexdigest()}.jsa"


def java_program() -> Path | None:
    """Return the Java that Spark's script would use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    path = Path(java).resolve() if java else None
    return path if path is not None and path.is_file() else None
