"""`nadi key`: master keys of encrypted stores, and the data keys that they wrap. Running servers follow a rotation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.admin.storing import StoreOptions, store_options
from nadi.cli.printing import Form, reporting_errors, say, show, utc
from nadi.config import OPTIONS
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.encryption.key_ring import KeyRing

key_app = typer.Typer(no_args_is_help=True)

_Place = Annotated[str, typer.Argument(metavar="STORE", help="Data folder, or URL of a cluster's store.")]
_OPTION = OPTIONS["encryption_key"]
_Source = Annotated[str, typer.Option("--encryption-key", envvar=_OPTION.variable, help="Source of the master key.")]


@key_app.command()
def create(
    file: Annotated[Path, typer.Argument(help="File of master keys; created if it doesn't exist.")],
) -> None:
    """Write a new master key to a file, above its earlier ones.

    Back the file up: without it, the stores that it encrypts are unreadable.
    """
    from nadi.encryption.master_keys import LocalKeys, new_key
    from nadi.segmentstore.tier1.disk import replace_file

    with reporting_errors(OSError):
        earlier = file.read_text("ascii") if file.exists() else ""
        if earlier:
            LocalKeys(earlier, str(file))
        text = f"{new_key()}\n{earlier}"
        replace_file(file, text.encode())
        say(f"master key {LocalKeys(text, str(file)).name} is the newest in {file}")


@key_app.command("list")
def list_keys(store: _Place, store_option: StoreOptions = None, form: Form = Form.TABLE) -> None:
    """List the data keys of an encrypted store, and the master key that wrapped each."""
    import asyncio

    async def listed() -> None:
        async with _ring(store, store_option) as ring:
            keys = await ring.listed()
        rows = [{"id": key.id, "created": utc(key.created_ms), "master_key": key.master} for key in keys]
        show(rows, ("id", "created", "master_key"), form=form)

    with reporting_errors(OSError):
        asyncio.run(listed())


@key_app.command()
def rotate(store: _Place, encryption_key: _Source, store_option: StoreOptions = None) -> None:
    """Add a data key for new data, and wrap all data keys with the newest master key. Nothing is rewritten.

    Servers may be running: they use the new data key within seconds of their next snapshot.
    """
    import asyncio

    from nadi.encryption.master_keys import open_master_key

    async def rotated() -> None:
        async with _ring(store, store_option) as ring:
            new = await ring.rotate(open_master_key(encryption_key))
        say(f"data key {new.id} is for new data; master key {new.master} wraps all data keys")

    with reporting_errors(OSError):
        asyncio.run(rotated())


@asynccontextmanager
async def _ring(store: str, given: list[str] | None) -> AsyncIterator[KeyRing]:
    """Open the data keys of a store. InvalidArgumentError: it isn't encrypted."""
    from nadi.encryption.key_ring import KeyRing
    from nadi.object_log.opening import open_chunk_engines
    from nadi.runtime import REAL

    url, options = _url_of(store, given)
    engine, registry = await open_chunk_engines(url, REAL, **options)
    try:
        ring = KeyRing(registry, REAL)
        if not await ring.listed():
            raise InvalidArgumentError(f"{store} isn't encrypted: it lacks data keys")
        yield ring
    finally:
        await engine.close()


def _url_of(store: str, given: list[str] | None) -> tuple[str, dict[str, str]]:
    """Return the URL and the options of a cluster's store, or of a data folder's."""
    if "://" in store:
        return store, store_options(store, given)
    from nadi.migration.sources import store_of, store_url

    folder = Path(store)
    if not folder.is_dir():
        raise InvalidArgumentError(f"folder {store} doesn't exist")
    file = store_of(folder)
    return store_url(folder, file), file.options
