"""The page as the REST port serves it: static files with their headers, and all endpoints of the page.

URLs of files contain a hash over all files, so browsers cache them permanently and revalidate only `/`. The headers
allow the page to run its own script files and to connect to its own server, and nothing else: it can't be framed,
shown text never becomes markup or script, and no cookies are sent.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nadi.controller.rest.endpoint import PAGE_FILES, Site
from nadi.loopback_clients import OwnClients
from nadi.web import live, searching, stream_cuts
from nadi.web.events import Readers

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_GOOD = "public, max-age=31536000, immutable"
HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), usb=()",
}


@dataclass(frozen=True, slots=True)
class _StaticFile:
    data: bytes
    packed: bytes
    kind: str


@cache
def _files() -> tuple[str, Mapping[str, _StaticFile]]:
    """Return the hash over all files, and the files by path. `index.html` gets the hash and the list of all modules, so
    that a browser can load them in parallel."""
    sources = dict(sorted(_sources(files(__package__) / "files", "")))
    digest = hashlib.sha256()
    for name, data in sources.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    version = digest.hexdigest()[:20]
    modules = [f'<link rel="modulepreload" href="{{files}}/{name}">' for name in sources if name.endswith(".js")]
    page = sources["index.html"].replace(b"<!-- modules -->", "\n".join(modules).encode())
    sources["index.html"] = page.replace(b"{files}", f"{PAGE_FILES}/{version}".encode())
    static = {
        name: _StaticFile(data, gzip.compress(data, mtime=0), KINDS[name[name.rindex(".") :]])
        for name, data in sources.items()
    }
    return version, static


def _sources(folder: Traversable, above: str) -> list[tuple[str, bytes]]:
    sources = []
    for entry in folder.iterdir():
        name = f"{above}{entry.name}"
        if entry.is_dir():
            sources += _sources(entry, f"{name}/")
        elif entry.name.endswith(tuple(KINDS)):
            sources.append((name, entry.read_bytes()))
    return sources


async def _page(request: Request) -> Response:
    version, static = _files()
    tag = f'"{version}"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={**HEADERS, "ETag": tag, "Cache-Control": "no-cache"})
    return _sent(request, static["index.html"], {"ETag": tag, "Cache-Control": "no-cache"})


async def _file(request: Request) -> Response:
    """Serve a file. Under another version's URL, of an older or newer server, it is the current file, uncached."""
    version, static = _files()
    file = static.get(request.path_params["path"])
    if file is None or request.path_params["path"] == "index.html":
        raise HTTPException(404)
    is_current = request.path_params["version"] == version
    return _sent(request, file, {"Cache-Control": _FOR_GOOD if is_current else "no-store"})


def _sent(request: Request, file: _StaticFile, more: Mapping[str, str]) -> Response:
    headers = {**HEADERS, **more, "Content-Type": file.kind, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.data, headers=headers)
    return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"})


def live_site(clients: OwnClients) -> Site:
    """Return the site for an Api. clients: the owner sets their address once the server has one, and closes them."""
    clients.ended.append(searching.forget_all)
    through = (bound(clients) for bound in (*stream_cuts.BOUND, *searching.BOUND))
    endpoints = (*live.ENDPOINTS, *through, *Readers(clients).endpoints())
    return Site(endpoints, (Route("/", _page), Route(PAGE_FILES + "/{version}/{path:path}", _file)))
