"""The page as it is served: its files, how long they are kept, and what they may do."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
FILES = ROOT / "src" / "nadi" / "web" / "files"
SCRIPTS = sorted((FILES / "js").glob("*.js"))


def at(rest: httpx.Client) -> str:
    """The folder of the page's files."""
    (found,) = set(re.findall(r'"(/page/[0-9a-f]{20})/', rest.get("/").text))
    return str(found)


def test_the_page_is_asked_for_each_time_and_its_files_are_kept_for_good(rest: httpx.Client) -> None:
    page = rest.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    assert rest.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    assert rest.get("/", headers={"If-None-Match": '"another"'}).status_code == 200
    for path in [FILES / "style.css", FILES / "icon.svg", *SCRIPTS]:
        served = rest.get(f"{at(rest)}/{path.relative_to(FILES)}")
        assert served.content == path.read_bytes(), path
        assert "immutable" in served.headers["cache-control"]
    assert served.headers["content-type"].startswith("text/javascript")


def test_files_of_another_version_are_the_current_ones_and_not_kept(rest: httpx.Client) -> None:
    other = rest.get("/page/0000/style.css")
    assert other.content == (FILES / "style.css").read_bytes()
    assert other.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["nothing.js", "index.html", "../page.py", "%2e%2e/page.py", "js", ""])
def test_what_is_no_file_of_it_is_not_there(rest: httpx.Client, path: str) -> None:
    assert rest.get(f"{at(rest)}/{path}").status_code == 404


def test_files_are_packed_for_whoever_takes_that(rest: httpx.Client) -> None:
    for accepts, packing in (("gzip, br", "gzip"), ("identity", None)):
        served = rest.get(f"{at(rest)}/style.css", headers={"Accept-Encoding": accepts})
        assert served.headers.get("content-encoding") == packing
        assert served.content == (FILES / "style.css").read_bytes()


def test_nothing_but_its_own_scripts_may_run_and_nobody_frames_it(rest: httpx.Client) -> None:
    for path in ("/", f"{at(rest)}/js/app.js"):
        headers = rest.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in headers
    page = rest.get("/").text
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=", page)


def test_no_file_makes_markup_of_texts_or_asks_anybody_else() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|\.cookie|DOMParser"
    for path in SCRIPTS:
        text = path.read_text()
        assert not re.search(forbidden, text), path.name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        assert len(text.splitlines()) <= 400, path.name
        for name in re.findall(r'from "\./([\w.]+)"', text):
            assert (path.parent / name).exists(), f"{path.name} imports {name}"
    assert "http" not in (FILES / "style.css").read_text()


def test_the_wheel_and_the_source_have_the_files(tmp_path: Path) -> None:
    wheels = pytest.importorskip("hatchling.builders.wheel", reason="needs hatchling, of the extra dev")
    (made,) = wheels.WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    wanted = {f"nadi/web/files/{path.relative_to(FILES)}" for path in FILES.rglob("*") if path.is_file()}
    assert len(wanted) > 15
    assert wanted <= set(zipfile.ZipFile(made).namelist())
    sources = pytest.importorskip("hatchling.builders.sdist")
    import tarfile

    (packed,) = sources.SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in wanted} <= names
