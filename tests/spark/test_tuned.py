"""A session of `nadi.spark.tuned`: its Python programs use a compiled pyspark, its Java an archive of Spark's
classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nadi.cli.spark.commands import delete_archive, write_archive
from nadi.errors import NadiError
from nadi.spark import tuned, tuning

PROGRAM = Path(__file__).parents[2] / "programs" / "nadi-spark-python"
ZIP = "pyspark/python/lib/pyspark.zip"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program, next to a Python that prints its path and arguments; and an installed pyspark, "here"."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "here" / "pyspark").mkdir(parents=True)
    (tmp_path / "here" / "pyspark" / "__init__.py").touch()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH|$*"\n')
    python.chmod(0o755)
    (tmp_path / "bin" / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    (tmp_path / "bin" / PROGRAM.name).chmod(0o755)
    return tmp_path / "bin" / PROGRAM.name


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("{zip}", "{here}"),
        ("{zip}:/b", "/b:{here}"),
        ("/a:{zip}:/b:{zip}", "/a:/b:{here}"),
        ("/elsewhere/" + ZIP + ":/b", "/elsewhere/" + ZIP + ":/b"),
        ("/a b:{zip}", "/a b:{here}"),
        ("/a", "/a"),
        ("", ""),
    ],
)
def test_installed_pyspark_replaces_its_zip(program: Path, given: str, wanted: str) -> None:
    here = program.parents[1] / "here"
    names = {"zip": here / ZIP, "here": here}
    done = subprocess.run(
        [program, "-m", "x y", "z"],
        env={**os.environ, "PYTHONPATH": given.format(**names)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.rstrip("\n") == wanted.format(**names) + "|-m x y z"


class Settings(dict[str, str]):
    def config(self, key: str, value: str) -> None:
        self[key] = value


def test_session_uses_existing_program_and_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is as it was afterwards
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "SharedArchive" not in tuned(Settings())["spark.driver.extraJavaOptions"]
    assert os.environ.pop("PYSPARK_PYTHON") == str(tmp_path / "python")

    (tmp_path / "nadi-spark-python").touch(mode=0o755)
    file = tuning.archive_file()
    assert file is not None
    file.parent.mkdir()
    file.touch()
    options = tuned(Settings(), java_options="-Xss4m")["spark.driver.extraJavaOptions"]
    assert f"-XX:SharedArchiveFile={file} " in options
    assert options.endswith(" -Xss4m")
    assert os.environ["PYSPARK_PYTHON"] == str(tmp_path / "nadi-spark-python")


def test_tuned_session_programs_import_installed_pyspark(spark: Any) -> None:
    if os.environ["PYSPARK_PYTHON"] == sys.executable:
        pytest.skip("nadi-spark-python is not installed next to this Python")

    def where(_: Any) -> list[str]:  # within the test, so that it is sent by value
        import pyspark

        return [str(pyspark.__file__)]

    (found,) = spark.sparkContext.parallelize([0], 1).flatMap(where).collect()
    assert ".zip" not in found


def test_unfit_archive_is_ignored(tmp_path: Path) -> None:
    """Java ignores it silently, and runs."""
    bad = tmp_path / "bad.jsa"
    bad.write_bytes(b"\0" * 10_000)
    java = tuning.java_program()
    assert java is not None
    command = [str(java), f"-XX:SharedArchiveFile={bad}", tuning.QUIET, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cds" not in done.stdout


def test_archive_without_java_or_with_failure_raises_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NadiError, match="JAVA_HOME"):
        write_archive()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho no such option >&2; exit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    with pytest.raises(NadiError, match="Java gateway process"):
        write_archive()
    assert str(tmp_path) in delete_archive()
    assert not [*tmp_path.rglob("*.jsa*")], "no draft is left"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_archive_is_written_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "MB: sessions of nadi.spark.tuned use it" in write_archive()
    assert tuning.archive_options()
    assert delete_archive().startswith("deleted")
    assert not tuning.archive_options()
