"""The published distributions: contents of wheel and sdist, and a run with only the required packages installed.

A venv gets the wheel and, by links, exactly the packages required by its metadata without extras; it is isolated from
home, environment and this clone. `-m slow` has pip fetch them from the registry instead, for wheel and sdist.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement

from tests.cli.test_deployed_alone import copied
from tests.support.server_output import addresses_in, read_until_ready

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "import sys, hatchling.build as build; print(getattr(build, 'build_' + sys.argv[1])(sys.argv[2]))"
WAIT_S = 60

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(),
    reason="not a clone: git lists the published files",
)

# What asks for each extra, and can't do without it. The others bring what examples and tests import by themselves.
MISSING = {
    "avro": "import nadi.client.serializers.avro",
    "bearer": "from nadi.access.bearer import BearerKeys, BearerSettings\n"
    "BearerKeys(BearerSettings('https://id.example/keys', 'i', 'a'))",
    "encryption": "from nadi.encryption.sealing import DataKeys; DataKeys({1: bytes(32)})",
    "aws-kms": "from nadi.encryption.services import aws_kms; aws_kms('key')",
    "azure-key-vault": "from nadi.encryption.services import azure_key_vault; azure_key_vault('https://v/keys/k')",
    "gcp-kms": "from nadi.encryption.services import gcp_kms; gcp_kms('key')",
    "vault": "from nadi.encryption.services import vault; vault('key')",
    "functions": "import nadi.functions.handlers.target",
    "hdfs": "from nadi.object_log.hdfs.files import connect; connect(None)",
    "kafka": "import nadi.kafka.server",
    "lake": "from nadi.lake.table.catalogs import open_catalog; open_catalog({})",
    "nats": "import asyncio; from nadi.object_log.opening import open_log; from nadi.runtime import REAL\n"
    "asyncio.run(open_log('nats://127.0.0.1:1/S', REAL, make=False))",
    "notebook": "import nadi, nadi.notebook\n"
    "with nadi.StreamManager('tcp://127.0.0.1:1') as manager: nadi.notebook.play(manager, 'home', 'meters')",
    "pictures": "from nadi.charts import check_file; from pathlib import Path; check_file(Path('x.svg'))",
    "search": "from nadi.search.fields import check_installed; check_installed()",
    "spark": "import pyspark_nadi",
    "sql": "from nadi.cli.sql.command import check_installed; check_installed()",
    "traces": "import nadi; nadi.turn_on_traces()",
}
FOR_PROGRAMS = {"camera", "connect", "demo", "dev", "docs"}


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Built:
    """The built distributions. tracked: the files that git has, or would have."""

    wheel: Path
    sdist: Path
    tracked: list[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    clone, dist = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    listed = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    tracked = [name for name in listed if (ROOT / name).is_file()]
    for name in tracked:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    wheel, sdist = (
        run(sys.executable, "-c", BUILD, kind, dist, cwd=clone).splitlines()[-1] for kind in ("wheel", "sdist")
    )
    return Built(dist / wheel, dist / sdist, tracked)


@dataclass(frozen=True, slots=True)
class Bare:
    """A venv, and an empty folder as its home."""

    venv: Path
    home: Path

    def command(self, *arguments: str | Path) -> list[str]:
        """Run without the environment, the user's packages and the current folder."""
        python = self.venv / "bin/python"
        return ["env", "-i", f"HOME={self.home}", "COLUMNS=200", str(python), "-I", *map(str, arguments)]

    def nadi(self, *arguments: str | Path, code: int = 0, given: str = "") -> str:
        done = subprocess.run(
            self.command(self.venv / "bin/nadi", *arguments),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            cwd=self.home,
            input=given,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def serving(self, *arguments: str | Path) -> Iterator[dict[str, str]]:
        """Run `nadi up`; yield the ports it prints."""
        command = self.command(self.venv / "bin/nadi", "up", "--port", "0", *arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.home) as process:
            yield addresses_in(read_until_ready(process))
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0


def needed(name: str, extras: frozenset[str] = frozenset()) -> dict[str, metadata.Distribution]:
    """Return the names of the requirements of an installed package, recursively."""
    found: dict[str, metadata.Distribution] = {}
    asked = [(name, extras)]
    while asked:
        one, more = asked.pop()
        distribution = metadata.distribution(one)
        if one != name:
            found[one] = distribution
        for text in distribution.requires or []:
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *more)):
                key = need.name.lower().replace("_", "-")
                if key not in found:
                    asked.append((key, frozenset(need.extras)))
    return found


def venv_in(folder: Path) -> tuple[Path, Path]:
    """Create a venv; return it and its package folder."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    return folder, packages


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    venv, packages = venv_in(tmp_path_factory.mktemp("bare") / "venv")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        venv / "bin/python",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        built.wheel,
    )
    for distribution in needed("nadi").values():
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(distribution.locate_file(top)))
    return Bare(venv, tmp_path_factory.mktemp("home"))


# --- published files ---------------------------------------------------------------------------------------


def test_the_wheel_holds_the_sources_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"nadi-{PROJECT['version']}.dist-info/METADATA").decode()
    own = {name for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert own == {name.removeprefix("src/") for name in built.tracked if name.startswith("src/")}
    assert {"nadi/py.typed", "nadi/web/files/index.html", "nadi/web/files/js/player.js"} <= own
    assert {name.partition("/")[0] for name in own} == {"nadi", "pyspark_nadi", "pyspark_pravega"}
    rest = {name.partition("/")[2] for name in names - own}
    assert {"licenses/LICENSE", "licenses/NOTICE", "entry_points.txt", "scripts/nadi-spark-python"} <= rest
    assert "Requires-Dist: pyspark<4.4,>=4.2; extra == 'spark'" in metadata
    unconditional = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.M)
    assert "pyspark" not in unconditional
    assert len(unconditional) == len(PROJECT["dependencies"])


def test_the_sdist_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    run("tar", "-xzf", built.sdist, "-C", tmp_path, cwd=tmp_path)  # not `tarfile`, whose filters 3.11.2 doesn't have
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-c", BUILD, "wheel", tmp_path, cwd=source)
    with zipfile.ZipFile(tmp_path / built.wheel.name) as again, zipfile.ZipFile(built.wheel) as first:
        assert again.namelist() == first.namelist()
        assert all(again.read(name) == first.read(name) for name in first.namelist())
    assert {"pyproject.toml", "LICENSE", "docs", "deploy", "tests"} <= {path.name for path in source.iterdir()}


def test_sdist_holds_what_git_has(built: Built) -> None:
    names = run("tar", "-tzf", built.sdist).split()
    assert {name.partition("/")[2] for name in names} == {*built.tracked, "PKG-INFO"}


def test_the_image_sees_all_that_the_package_is_built_from(built: Built, tmp_path: Path) -> None:
    clone, seen = tmp_path / "clone", copied()
    for name in built.tracked:
        if any(name == one or name.startswith(f"{one}/") for one in seen):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    run(sys.executable, "-c", BUILD, "wheel", tmp_path, cwd=clone)
    with zipfile.ZipFile(tmp_path / built.wheel.name) as theirs, zipfile.ZipFile(built.wheel) as ours:
        assert theirs.namelist() == ours.namelist()


# --- and works -------------------------------------------------------------------------------------------


def uses(bare: Bare) -> None:
    """Serve, write, read, open the page, run the doctor."""
    assert "--print-config" in bare.nadi("up", "--help")
    assert bare.nadi("--version") == f"nadi {PROJECT['version']}\n"
    with bare.serving("--data", bare.home / "data") as addresses:
        at = ("--controller", addresses["controller"].strip())
        rest = addresses["REST"].strip()
        assert "wrote 2 events" in bare.nadi("write", "home", "meters", "--create", "1", *at, given="12 Wh\n13 Wh\n")
        assert bare.nadi("read", "home", "meters", *at) == "12 Wh\n13 Wh\n"
        assert bare.nadi("tail", "home", "meters", "--no-follow", "-n", "1", *at) == "13 Wh\n"
        with urlopen(f"{rest}/") as answer:
            page = answer.read().decode()
        files = sorted(set(re.findall(r'(?:src|href)="(/page/[^"]+)"', page)))
        assert len(files) > 5
        for file in files:
            with urlopen(f"{rest}{file}") as answer:
                assert answer.read()
        report = bare.nadi("doctor", *at, "--rest", rest, "--data", bare.home / "data2", "-o", "json")
        looked = {one["check"]: one["state"] for one in json.loads(report)}
        assert looked["version"] == looked["health"] == "ok"


def test_it_serves_where_nothing_else_is_installed(bare: Bare) -> None:
    for module in ("pyspark", "pytest", "matplotlib", "httpx", "fastavro"):
        assert subprocess.run(bare.command("-c", f"import {module}"), capture_output=True).returncode == 1
    uses(bare)


@pytest.fixture(scope="module")
def refusals(bare: Bare) -> dict[str, str]:
    """Check the errors without each extra."""
    metadata = (
        "import sys, json\nfound = {}\n"
        "for name, code in json.load(sys.stdin).items():\n"
        "    try:\n        exec(code, {})\n"
        "    except Exception as error:\n        found[name] = f'{type(error).__name__}: {error}'\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        bare.command("-c", metadata),
        input=json.dumps(MISSING),
        capture_output=True,
        text=True,
        cwd=bare.home,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("extra", MISSING)
def test_missing_extra_is_named(extra: str, refusals: dict[str, str]) -> None:
    assert f"nadi[{extra}]" in refusals.get(extra, "nothing was missing")
    assert "pip install" in refusals[extra]


def test_each_extra_is_tried_or_has_a_reason_not_to_be() -> None:
    assert set(PROJECT["optional-dependencies"]) == MISSING.keys() | FOR_PROGRAMS


def test_the_guide_has_each_extra() -> None:
    guide = (ROOT / "docs/install.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", guide, re.M)) == set(PROJECT["optional-dependencies"])
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert f"Python {classified[0]} to {classified[-1]};" in guide


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_pip_installs_it(kind: str, built: Built, tmp_path: Path) -> None:
    venv, _ = venv_in(tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--python", str(venv / "bin/python"))
    file = built.wheel if kind == "wheel" else built.sdist
    done = subprocess.run([*pip, "install", "-q", str(file)], capture_output=True, text=True, timeout=600)
    if done.returncode != 0 and "connection" in done.stderr.lower():
        pytest.skip(f"pip reaches no registry here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    run(*pip, "check")
    (tmp_path / "home").mkdir()
    uses(Bare(venv, tmp_path / "home"))
