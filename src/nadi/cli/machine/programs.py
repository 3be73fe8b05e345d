"""What runs here: Python, nadi's libraries, and how many files a process may open."""

from __future__ import annotations

import re
import resource
import sys
from importlib import metadata

from nadi.cli.machine.finding import Finding, note, ok, wrong

_LEAST_PYTHON, _LAST_TRIED = (3, 11), (3, 13)
_FEW_FILES, _ENOUGH_FILES = 1024, 8192
_NEED = re.compile(r"([A-Za-z0-9_.\-]+)(?:\[[^\]]*\])?\s*([^;]*)$")
_BOUND = re.compile(r"(>=|<=|==|<|>|~=|!=)\s*([0-9][0-9.]*)")


def looked_at() -> list[Finding]:
    return [_python(), _libraries(), _open_files()]


def _python() -> Finding:
    here = sys.version_info[:2]
    found = f"{sys.version.split()[0]}, {sys.executable}"
    if here < _LEAST_PYTHON:
        return wrong("Python", found, "nadi needs 3.11 or later")
    if here > _LAST_TRIED:
        return note("Python", found, "nadi is tested with 3.11 to 3.13")
    return ok("Python", found)


def _libraries() -> Finding:
    try:
        needs = [need for need in metadata.requires("nadi") or [] if "extra ==" not in need]
    except metadata.PackageNotFoundError:
        return note("libraries", "nadi isn't installed as a package", "pip install nadi, so that its needs are known")
    bad = [problem for need in needs if (problem := _problem(need))]
    if bad:
        return wrong("libraries", "; ".join(bad), "pip install --upgrade nadi")
    return ok("libraries", f"all {len(needs)} are there, and of versions that fit")


def _problem(need: str) -> str:
    """What is wrong with the library that is needed; "" if nothing is."""
    match = _NEED.match(need.partition(";")[0].strip())
    if match is None:
        return ""
    try:
        version = metadata.version(match[1])
    except metadata.PackageNotFoundError:
        return f"{match[1]} is missing"
    return "" if fits(version, match[2]) else f"{match[1]} {version} is not {match[2].strip()}"


def fits(version: str, bounds: str) -> bool:
    """Whether a version is within bounds, by its numbers.

    >>> fits("1.10.2", ">=1.9,<2"), fits("2.0", ">=1.9,<2"), fits("1.2", ">=1.2.0"), fits("3rc1", ">=3")
    (True, False, True, True)
    """
    here = _numbers(version)
    for sign, text in _BOUND.findall(bounds):
        there = _numbers(text)
        width = max(len(here), len(there))
        one, other = (numbers + [0] * (width - len(numbers)) for numbers in (here, there))
        is_so = {
            ">=": one >= other,
            "<=": one <= other,
            "==": one == other,
            "!=": one != other,
            "<": one < other,
            ">": one > other,
            "~=": one >= other,
        }
        if not is_so[sign]:
            return False
    return True


def _numbers(version: str) -> list[int]:
    leading = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return [int(number) for number in leading[0].split(".")] if leading is not None else []


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,} at most"
    found = f"{soft:,} now, {most}"
    if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:
        return wrong("open files", found, "raise the limit (ulimit -n, or LimitNOFILE of systemd) to 65536")
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH_FILES:
        return note("open files", found, "for many connections, raise the limit (ulimit -n) to 65536")
    return ok("open files", f"{found}; a server takes all it may")
