"""The jars of Kafka's broker, of Spark's source for it, and of Pravega's servers, from Maven Central."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from urllib.request import urlopen

BROKER, SPARK, PRAVEGA = "broker", "spark", "pravega"
_POMS = {BROKER: "kafka.xml", PRAVEGA: "pravega.xml"}  # in the folder `java`
_MAVEN = "https://repo1.maven.org/maven2/"
_OF_SPARK = {  # what Spark 4.3 itself lacks of the newest release there is, with SHA-256
    "org/apache/spark/spark-sql-kafka-0-10_2.13/4.2.0/spark-sql-kafka-0-10_2.13-4.2.0.jar": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.2.0/spark-token-provider-kafka-0-10_2.13-4.2.0.jar": (
        "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c"
    ),
    "org/apache/kafka/kafka-clients/3.9.2/kafka-clients-3.9.2.jar": (
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"
    ),
    "org/apache/commons/commons-pool2/2.13.1/commons-pool2-2.13.1.jar": (
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f"
    ),
}
_TIMEOUT_S, _IDLE_S = 600, 10
_PATIENCE = ("-Daether.connector.connectTimeout=10000", "-Daether.connector.requestTimeout=60000")


class Missing(Exception):
    """The jars are unavailable here; the message has the reason."""


def jars_of(kind: str) -> list[Path]:
    """Return the paths of the jars. Raises Missing without Java and Maven, or if they can't be downloaded; Spark's need
    no Maven."""
    pom = Path(__file__).with_name("java") / _POMS[kind] if kind in _POMS else None
    for program in ("java",) if pom is None else ("java", "mvn"):
        if shutil.which(program) is None:
            raise Missing(f"{kind} needs `{program}`, which is not installed")
    wanted = "\n".join(_OF_SPARK.values()).encode() if pom is None else pom.read_bytes()
    mark = hashlib.sha256(wanted).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "nadi" / "bench" / f"{kind}-{mark}"
    if not folder.is_dir():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            _download_spark(draft) if pom is None else _download(pom, draft)
        except Missing:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        try:
            draft.rename(folder)
        except OSError:  # another was faster
            shutil.rmtree(draft)
    return sorted(folder.glob("*.jar"))


def _download(pom: Path, folder: Path) -> None:
    command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", *_PATIENCE, f"--file={pom}"]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"downloading the jars of {pom.name} took longer than {_TIMEOUT_S} s") from None
    if run.returncode:
        said = run.stdout.strip().splitlines()
        raise Missing(f"Maven can't download the jars of {pom.name}: {said[0][:300] if said else '?'}")


def _download_spark(folder: Path) -> None:
    folder.mkdir(parents=True)
    for path, sha256 in _OF_SPARK.items():
        try:
            with urlopen(_MAVEN + path, timeout=_IDLE_S) as response:
                jar = response.read()
        except OSError as error:
            raise Missing(f"{_MAVEN}{path} can't be downloaded: {error}") from error
        if hashlib.sha256(jar).hexdigest() != sha256:
            raise Missing(f"{_MAVEN}{path} is not the expected file")
        (folder / Path(path).name).write_bytes(jar)


if __name__ == "__main__":
    for found in jars_of(SPARK):
        print(found)
