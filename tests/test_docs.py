"""The documentation site builds without a warning, and its generated pages list what the code defines."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import typer

import nadi
from nadi.cli.app import app
from nadi.config import OPTIONS
from nadi.spark.options.table import OPTIONS as SPARK_OPTIONS
from nadi.wire.rpc.service import METHODS
from tests.metrics.support import ALL

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
EXPORTING = ("nadi", "nadi.functions", "nadi.lake", "nadi.process", "nadi.search", "nadi.spark", "nadi.testing")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def page(site: Path, name: str) -> str:
    """Return the page's content, without navigation."""
    return (site / "reference" / f"{name}.html").read_text().partition("<article")[2]


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def sections(html: str) -> dict[str, str]:
    """Return the text under each second-level heading, by heading."""
    parts = re.split(r"<h2 [^>]*>(.*?)</h2>", html, flags=re.S)
    return {text_of(head).removesuffix("¶"): text_of(body) for head, body in zip(parts[1::2], parts[2::2], strict=True)}


def rows(html: str) -> list[list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    return [[text_of(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.S)] for row in found]


def plain(text: str) -> str:
    """Return text as a page shows it: names of guides are links without folder and extension."""
    return " ".join(re.sub(r"docs/([\w-]+)\.md", r"\1", text.replace("`", "")).split())


def test_site_has_all_pages(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    written = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert written < pages
    assert {"architecture.html", "changelog.html", "contributing.html", "reference/python.html"} <= pages - written


def test_site_needs_no_other_server(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(?:https?:)?//[^ >]*", path.read_text()), path


def commands(group: Any, path: str = "nadi") -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        command, full_name = group.commands[name], f"{path} {name}"
        yield from commands(command, full_name) if hasattr(command, "commands") else [(full_name, command)]


def test_cli_page_lists_every_command_with_its_options(site: Path) -> None:
    listed = sections(page(site, "cli"))
    shared = listed.pop("Common options")
    expected = dict(commands(typer.main.get_command(app)))
    assert listed.keys() == expected.keys()
    for name, command in expected.items():
        assert plain(command.help.partition("\n\n")[0]) in listed[name]
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or max(parameter.opts, key=len) in listed[name]
            assert plain(parameter.help or "") in f"{listed[name]} {shared}", (name, parameter.name)


def test_configuration_page_lists_every_setting(site: Path) -> None:
    listed = {cells[0]: cells[1:] for cells in rows(page(site, "configuration")) if cells[0] != "setting"}
    assert listed.keys() == {option.key for option in OPTIONS.values()}
    for option in OPTIONS.values():
        default = option.default_text or ("false" if option.default is False else str(option.default or "–"))
        assert listed[option.key] == [option.allowed, default, option.variable, plain(option.help)]


def test_metrics_page_lists_every_metric(site: Path) -> None:
    listed = [cells for cells in rows(page(site, "metrics")) if cells[0] != "metric"]
    assert sorted(listed) == sorted([one.full_name, one.kind, ", ".join(one.labels), one.help] for one in ALL.values())


def test_rest_page_lists_what_a_server_publishes(site: Path, tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, rest_port=0) as server, urlopen(f"{server.rest_uri}/v1/openapi.json") as answer:
        published = json.load(answer)
    listed = sections(page(site, "rest"))
    schemas, shared = listed.pop("Schemas"), listed.pop("Common responses")
    paths = published["paths"].items()
    assert listed.keys() == {f"{verb.upper()} {path}" for path, verbs in paths for verb in verbs}
    for path, verb, operation in (
        (path, verb, operation) for path, verbs in paths for verb, operation in verbs.items()
    ):
        section = listed[f"{verb.upper()} {path}"]
        assert plain(operation["summary"]) in section
        assert all(one["name"] in section for one in operation.get("parameters", ()))
        for code, response in operation["responses"].items():
            assert f"{code} {plain(response['description'])}" in f"{section} {shared}"
    for name, schema in published["components"]["schemas"].items():
        assert name in schemas
        assert all(field in schemas for field in schema.get("properties", ()))


@pytest.mark.parametrize("module", EXPORTING)
def test_python_page_lists_what_a_module_exports(module: str, site: Path) -> None:
    headings = re.findall(r"<h3 id=\"([\w.]+)\"", page(site, "python"))
    for name in import_module(module).__all__:
        value = getattr(import_module(module), name)
        home = f"{value.__module__}.{value.__qualname__}" if callable(value) else f"{module}.{name}"
        assert home in headings or inspect.ismodule(value), name


@pytest.mark.parametrize("kind", [nadi.StreamManager, nadi.EventWriter, nadi.Transaction])
def test_python_page_documents_methods_that_are_made_at_import(kind: type, site: Path) -> None:
    html = page(site, "python")
    for name, method in inspect.getmembers(kind, callable):
        if name[0] != "_":
            section = re.search(rf"<h4 id=\"[\w.]+\.{kind.__name__}\.{name}\".*?(?=<h[34] |\Z)", html, re.S)
            assert section, name
            assert f" {name}(" in text_of(section[0]), name  # its signature
            first_words = plain((inspect.getdoc(method) or "").partition("\n")[0])
            assert first_words in text_of(section[0]), name


def test_spark_page_lists_every_option(site: Path) -> None:
    listed = [cells[0] for cells in rows(page(site, "spark-options"))[1:]]
    assert listed == [", ".join((option.name, *option.also)) for option in SPARK_OPTIONS]


def test_compatibility_page_lists_every_rpc(site: Path) -> None:
    assert {*METHODS} <= {cells[0] for cells in rows(page(site, "compatibility"))}


def test_changelog_takes_fragments(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/README.md").write_text((ROOT / "changes/README.md").read_text())
    for kind in ("added", "changed", "fixed", "removed"):
        (tmp_path / f"changes/+one.{kind}.md").write_text(f"Something {kind}.\n")
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "7.0.0", "--date", "2027-01-02"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    kinds = ("added", "changed", "fixed", "removed")
    expected = ["## 7.0.0 (2027-01-02)", *(f"### {kind.title()}\n\n- Something {kind}." for kind in kinds)]
    assert done.stdout.strip() == "\n\n".join(expected)
    assert (ROOT / "CHANGELOG.md").read_text().startswith("# Changelog\n\n<!-- towncrier release notes start -->\n\n")
