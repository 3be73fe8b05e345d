"""Spark's Python workers have pyspark from where it is installed, not from its zip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nadi_spark_daemon import without_zip

_PLACE = "import sys; from nadi_spark_daemon import without_zip; sys.path[:] = without_zip(sys.path)"


def test_an_installed_pyspark_takes_the_place_of_its_zip(tmp_path: Path) -> None:
    file = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    assert without_zip(["a", str(file), "b"]) == ["a", str(file), "b"], "it isn't installed there"
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    assert without_zip(["a", str(file), "b"]) == ["a", str(tmp_path), "b"]
    assert without_zip(["a", str(file), str(tmp_path)]) == ["a", str(tmp_path)]


def test_the_zip_of_this_pyspark_is_passed_over() -> None:
    import pyspark

    assert pyspark.__file__ is not None
    home = Path(pyspark.__file__).parent
    path = os.pathsep.join([str(home / "python" / "lib" / "pyspark.zip"), *filter(None, sys.path)])
    found = []
    for first in ("pass", _PLACE):
        command = [sys.executable, "-c", f"{first}; import pyspark; print(pyspark.__file__)"]
        environment = {**os.environ, "PYTHONPATH": path}
        found.append(
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        )
    assert ".zip" in found[0]
    assert found[1] == str(home / "__init__.py")


def test_the_workers_of_a_tuned_session_do(spark: Any) -> None:
    def where(_: Any) -> list[str]:  # within the test, so that it is sent by value
        import pyspark

        return [str(pyspark.__file__)]

    (found,) = spark.sparkContext.parallelize([0], 1).flatMap(where).collect()
    assert ".zip" not in found
