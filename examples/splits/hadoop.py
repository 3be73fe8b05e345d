"""Splits read by the mappers of a MapReduce job, through Hadoop Streaming, like the job of Pravega's Hadoop connector.

Each line of `nadi splits` is a mapper's input, and `nadi read --split` is the mapper. Hadoop's local runner executes
the job: it is in the libraries of Spark, except for Streaming, which is one jar from Maven.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from examples.running import ExampleError

VERSION = "3.4.2"
REDUCER = Path(__file__).with_name("totals.py")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_PATIENCE = ("-Daether.connector.connectTimeout=10000", "-Daether.connector.requestTimeout=60000")
_LIBRARIES = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j", "log4j-", "commons-cli")
_DOWNLOAD_S, _JOB_S = 300, 300


class MissingError(ExampleError):
    """Hadoop is unavailable here; the message has the reason."""


def by_hadoop(controller: str, scope: str, stream: str, folder: Path) -> dict[str, int]:
    """Run the job in a new folder."""
    folder.mkdir()
    nadi = [sys.executable, "-m", "nadi"]
    splits = [*nadi, "splits", scope, stream, "--max-bytes", "1MiB", "--controller", controller, "--quiet"]
    (folder / "plan").write_bytes(subprocess.run(splits, check=True, stdout=subprocess.PIPE).stdout)
    command = [
        *hadoop(folder),
        *("-D", "mapreduce.job.reduces=1"),
        *("-D", "mapreduce.input.lineinputformat.linespermap=1"),
        *("-inputformat", "org.apache.hadoop.mapred.lib.NLineInputFormat"),
        *("-input", (folder / "plan").as_uri()),
        *("-output", (folder / "totals").as_uri()),
        *("-mapper", f"{' '.join(nadi)} read --split --format %k\\t%s\\n --key-field meter"),
        *("-reducer", f"{sys.executable} {REDUCER}"),
    ]
    with (folder / "log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, timeout=_JOB_S, cwd=folder)
    if done.returncode:
        raise ExampleError(f"the job failed:\n{(folder / 'log').read_text(errors='replace')[-2_000:]}")
    lines = (line.split("\t") for part in (folder / "totals").glob("part-*") for line in part.read_text().splitlines())
    return {meter: int(wh) for meter, wh in lines}


def hadoop(folder: Path) -> list[str]:
    """Return the command, up to a job's options, that runs a streaming job locally. Raises MissingError."""
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None or shutil.which("java") is None:
        raise MissingError("Hadoop needs Java, and the libraries in pyspark: pip install 'nadi[spark]'")
    jars = [path for path in (Path(pyspark.origin).parent / "jars").glob("*.jar") if path.name.startswith(_LIBRARIES)]
    local = {
        "mapreduce.framework.name": "local",
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(folder / "tmp"),
    }
    libraries = os.pathsep.join(map(str, [streaming_jar(), *jars]))
    options = [word for name, value in local.items() for word in ("-D", f"{name}={value}")]
    return [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        libraries,
        "org.apache.hadoop.streaming.HadoopStreaming",
        *options,
    ]


def streaming_jar() -> Path:
    """Return the jar, downloaded once. Raises MissingError without Maven, or if Maven can't download it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nadi" / "examples"
    jar = cache / f"hadoop-streaming-{VERSION}.jar"
    if jar.is_file():
        return jar
    if shutil.which("mvn") is None:
        raise MissingError("Hadoop Streaming needs Maven (`mvn`), which is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as draft:
        command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", *_PATIENCE, _COPY]
        command += [f"-Dartifact=org.apache.hadoop:hadoop-streaming:{VERSION}", f"-DoutputDirectory={draft}"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, cwd=draft)
        except subprocess.TimeoutExpired:
            raise MissingError(f"downloading Hadoop Streaming took longer than {_DOWNLOAD_S} s") from None
        if run.returncode:
            why = run.stdout.strip().splitlines()[:1] or ["?"]
            raise MissingError(f"Maven can't download Hadoop Streaming: {why[0][:300]}")
        (Path(draft) / jar.name).replace(jar)
    return jar
