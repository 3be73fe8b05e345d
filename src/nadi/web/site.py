"""The page, with all that it asks for, as a server's REST port serves it: its files, and the headers that they go out
with.

Files are named by a hash over all of them, so a browser keeps each for good and asks only for `/`. The page may run its
own scripts, from files, and talk to its own server; nothing else may: nobody frames it, no text that it shows becomes
markup or a script, and it sends no cookies.
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
    """The hash over all files, and the files by their paths; `index.html` has the hash put in, and names
    all modules, so that a browser needn't read one to learn of the next."""
    found = dict(sorted(_found(files(__package__) / "files", "")))
    digest = hashlib.sha256()
    for name, data in found.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    version = digest.hexdigest()[:20]
    modules = [f'<link rel="modulepreload" href="{{files}}/{name}">' for name in found if name.endswith(".js")]
    page = found["index.html"].replace(b"<!-- modules -->", "\n".join(modules).encode())
    found["index.html"] = page.replace(b"{files}", f"{PAGE_FILES}/{version}".encode())
    kept = {
        name: _StaticFile(data, gzip.compress(data, mtime=0), KINDS[name[name.rindex(".") :]])
        for name, data in found.items()
    }
    return version, kept


def _found(folder: Traversable, above: str) -> list[tuple[str, bytes]]:
    found = []
    for one in folder.iterdir():
        name = f"{above}{one.name}"
        if one.is_dir():
            found += _found(one, f"{name}/")
        elif one.name.endswith(tuple(KINDS)):
            found.append((name, one.read_bytes()))
    return found


async def _page(request: Request) -> Response:
    version, kept = _files()
    tag = f'"{version}"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={**HEADERS, "ETag": tag, "Cache-Control": "no-cache"})
    return _sent(request, kept["index.html"], {"ETag": tag, "Cache-Control": "no-cache"})


async def _file(request: Request) -> Response:
    """A file under another version's name, of a server that is older or newer, is the current one, and isn't kept."""
    version, kept = _files()
    found = kept.get(request.path_params["path"])
    if found is None or request.path_params["path"] == "index.html":
        raise HTTPException(404)
    is_current = request.path_params["version"] == version
    return _sent(request, found, {"Cache-Control": _FOR_GOOD if is_current else "no-store"})


def _sent(request: Request, file: _StaticFile, more: Mapping[str, str]) -> Response:
    headers = {**HEADERS, **more, "Content-Type": file.kind, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.data, headers=headers)
    return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"})


def live_site(clients: OwnClients) -> Site:
    """For an Api. clients: whoever makes them sets their door once the server has one, and closes them."""
    clients.ended.append(searching.forget_all)
    through = (bound(clients) for bound in (*stream_cuts.BOUND, *searching.BOUND))
    asked = (*live.ENDPOINTS, *through, *Readers(clients).endpoints())
    return Site(asked, (Route("/", _page), Route(PAGE_FILES + "/{version}/{path:path}", _file)))
