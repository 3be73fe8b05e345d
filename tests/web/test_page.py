"""The page's files, caching and security headers."""

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
    """Return the path of the page's files."""
    (path,) = set(re.findall(r'"(/page/[0-9a-f]{20})/', rest.get("/").text))
    return str(path)


def test_page_is_revalidated_and_its_files_are_cached_permanently(rest: httpx.Client) -> None:
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


def test_file_of_another_version_is_current_and_uncached(rest: httpx.Client) -> None:
    other = rest.get("/page/0000/style.css")
    assert other.content == (FILES / "style.css").read_bytes()
    assert other.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["nothing.js", "index.html", "../page.py", "%2e%2e/page.py", "js", ""])
def test_unknown_file_is_not_found(rest: httpx.Client, path: str) -> None:
    assert rest.get(f"{at(rest)}/{path}").status_code == 404


def test_files_are_compressed_on_request(rest: httpx.Client) -> None:
    for accepts, encoding in (("gzip, br", "gzip"), ("identity", None)):
        served = rest.get(f"{at(rest)}/style.css", headers={"Accept-Encoding": accepts})
        assert served.headers.get("content-encoding") == encoding
        assert served.content == (FILES / "style.css").read_bytes()


def test_headers_allow_only_own_scripts_and_no_framing(rest: httpx.Client) -> None:
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


def test_scripts_create_no_markup_and_use_no_other_servers() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|\.cookie|DOMParser"
    for path in SCRIPTS:
        text = path.read_text()
        assert not re.search(forbidden, text), path.name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        assert len(text.splitlines()) <= 400, path.name
        for name in re.findall(r'from "\./([\w.]+)"', text):
            assert (path.parent / name).exists(), f"{path.name} imports {name}"
    assert "http" not in (FILES / "style.css").read_text()


def test_wheel_and_source_contain_the_files(tmp_path: Path) -> None:
    wheels = pytest.importorskip("hatchling.builders.wheel", reason="needs hatchling, of the extra dev")
    (wheel,) = wheels.WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    expected = {f"nadi/web/files/{path.relative_to(FILES)}" for path in FILES.rglob("*") if path.is_file()}
    assert len(expected) > 15
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
    sources = pytest.importorskip("hatchling.builders.sdist")
    import tarfile

    (packed,) = sources.SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in expected} <= names
