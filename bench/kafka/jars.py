"""The jars of Kafka's broker and of Spark's source for it, downloaded once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

BROKER, SPARK = "broker", "spark"
_NEEDED = {  # of those that Maven gives: the rest is in Spark
    BROKER: ("",),
    SPARK: ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2"),
}
_TIMEOUT_S = 600
_PATIENCE = ("-Daether.connector.connectTimeout=10000", "-Daether.connector.requestTimeout=60000")


class Missing(Exception):
    """Kafka is unavailable here; the message has the reason."""


def jars_of(kind: str) -> list[Path]:
    """Return the paths of the jars. Raises Missing without Java or Maven, or if Maven can't download them."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise Missing(f"Kafka needs `{program}`, which is not installed")
    pom = Path(__file__).with_name(f"{kind}.xml")
    mark = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "nadi" / "bench" / f"kafka-{kind}-{mark}"
    if not folder.is_dir():
        _download(pom, folder)
    return sorted(jar for jar in folder.glob("*.jar") if jar.name.startswith(_NEEDED[kind]))


def _download(pom: Path, folder: Path) -> None:
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", *_PATIENCE, f"--file={pom}"]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={draft}", "-DincludeScope=runtime"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"downloading Kafka took longer than {_TIMEOUT_S} s") from None
    if run.returncode:
        shutil.rmtree(draft, ignore_errors=True)
        raise Missing(f"Maven can't download Kafka: {run.stdout.strip().splitlines()[0][:300] if run.stdout else '?'}")
    try:
        draft.rename(folder)
    except OSError:  # another was faster
        shutil.rmtree(draft)
