"""Settings for Spark on one machine: small micro-batches get two to three times as fast with them, reads 10% faster,
and the first row of a new session comes in two thirds of the time.

Java loads and verifies 15,000 classes until a session of Spark is up and has run a query. It can map them from a file
instead that it wrote at the end of an earlier run (class data sharing). `nadi spark archive` has it written, and a
session that is tuned uses it. Java itself checks that it fits, and does without it if not.
"""

from __future__ import annotations

import os
import shutil
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, TypeVar

QUIET = "-Xlog:cds*=off"  # what can't be archived, or doesn't fit, is nobody's concern
_JAVA = "spark.driver.extraJavaOptions"
TUNED = {
    "spark.python.unix.domain.socket.enabled": "true",
    # writes each checkpoint file by rename on the local disk, without the abstraction in front of it
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
    """Apply TUNED to a `SparkSession.builder` and return it; settings made later win.

    java_options: for the driver's Java beside its own, such as "-Xss4m"; setting `spark.driver.extraJavaOptions` later
    would take their place.

    Spark's Python programs are run by `nadi-spark-python`, this Python with a pyspark that is compiled, unless
    PYSPARK_PYTHON names another, and Spark's own ports are bound to loopback unless SPARK_LOCAL_IP is set. Java takes
    Spark's classes from the archive that `nadi spark archive` writes, if there is one.

    For one machine only: a checkpoint on S3 or HDFS needs that file system's own checkpoint manager, and a
    cluster needs an address that its executors can reach.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark has each of its Python programs import pyspark from a zip, and so compile it anew: half a second of a core,
    # five times until the first row. The one beside this Python has it imported from where it is installed.
    beside = Path(sys.executable).with_name("nadi-spark-python")
    python = str(beside) if os.access(beside, os.X_OK) else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)  # where nadi is; else the first python3 on the PATH
    for key, value in TUNED.items():
        builder.config(key, " ".join(filter(None, [value, archive_options(), java_options])) if key == _JAVA else value)
    return builder


def archive_options() -> str:
    """Java's options to use the archive; empty if there is none."""
    try:
        file = archive_file()
    except (OSError, RuntimeError):  # no home folder, or a pyspark without its jars
        return ""
    return f"-XX:SharedArchiveFile={file} {QUIET}" if file is not None and file.is_file() else ""


def archive_file() -> Path | None:
    """Where the archive for this Java and this pyspark is, or would be; None if there is no Java."""
    import pyspark

    java = java_program()
    spark_home = os.environ.get("SPARK_HOME") or (pyspark.__file__ and Path(pyspark.__file__).parent)
    if java is None or not spark_home:
        return None
    spark = Path(spark_home).resolve()
    known = f"{java} {java.stat().st_mtime_ns} {spark} {(spark / 'jars').stat().st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "nadi" / f"spark-{blake2b(known.encode(), digest_size=8).hexdigest()}.jsa"


def java_program() -> Path | None:
    """The one that Spark's own script would take."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    path = Path(found).resolve() if found else None
    return path if path is not None and path.is_file() else None
