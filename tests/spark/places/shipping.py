"""Ways of shipping nadi to a program's tasks, by the commands of the guide."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .cluster import source_path
from .guide import ROOT, command


@dataclass(frozen=True)
class Shipped:
    """The commands to run in the driver's folder, with MASTER and JOB; python, path: those of the other nodes."""

    command: str
    python: str
    path: str = ""


def installed(drivers: Path, nodes: Path) -> Shipped:
    """Install nadi in the Python of each node."""
    alone = "spark-submit --master spark://spark.example:7077 job.py"
    printed = command(alone, _AT | {"/opt/nadi/bin/python": sys.executable})
    return Shipped(f"export PYTHONPATH={source_path()}\n{printed}", sys.executable, source_path())


def archives(drivers: Path, nodes: Path) -> Shipped:
    """Ship a venv to nodes with a bare Python."""
    python3 = {"python3 ": f"{sys.executable} ", "install nadi": f"install --quiet '{ROOT}'"}
    pack, export, submit = command("--archives", _AT | python3).partition("export ")
    # here, for a node without a way to the package index could install nothing
    subprocess.run(["bash", "-ec", pack], cwd=drivers, check=True, timeout=500)
    return Shipped(export + submit, sys.executable)


def py_files(drivers: Path, nodes: Path) -> Shipped:
    """Ship nadi to nodes whose Python has its dependencies."""
    shutil.copytree(ROOT / "src", drivers / "src", ignore=shutil.ignore_patterns("__pycache__"))
    python = python_without_nadi(nodes / "bare")
    return Shipped(command("--py-files", _AT | {"/opt/python/bin/python": python}), python)


_AT = {"spark://spark.example:7077": "$MASTER", "job.py": "$JOB"}


def python_without_nadi(folder: Path) -> str:
    """Return a venv that shares the installed packages except nadi, whose .pth file doesn't count in a folder that is
    itself named by a .pth file."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shared = folder / "lib" / version / "site-packages" / "shared.pth"
    shared.write_text(sysconfig.get_path("purelib") + "\n")
    python = str(folder / "bin" / "python")
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('nadi') is not None)"
    subprocess.run([python, "-c", code], check=True, timeout=60, env={})
    return python
