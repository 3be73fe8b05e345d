"""Tantivy's errors, at the one seam to it: what it can't read, and what it doesn't take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nadi.errors import StoreError


@contextmanager
def errors_told(what: str) -> Iterator[None]:
    """StoreError in place of what tantivy raises about files that it doesn't understand."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise StoreError(f"{what} ({str(error)[:200]})") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, which nobody can import
            raise
        raise StoreError(f"{what} ({str(error)[:200]})") from error
