"""The address of an HTTP service, and the form in which it gets events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from nadi.errors import InvalidArgumentError

Mode = Literal["binary", "structured", "batched"]
MODES: tuple[Mode, ...] = ("binary", "structured", "batched")


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """An HTTP service that gets the events as CloudEvents.

    mode: "binary" and "structured" post each event separately, "batched" a whole batch. headers: sent with every
    request, such as `Authorization`. trust_store: a PEM file of trusted certificates; None trusts the system's.
    event_type, content_type: the CloudEvents' `type` and `datacontenttype`.

    >>> TargetAddress("https://bills.example/events", mode="batched").mode
    'batched'
    """

    url: str
    mode: Mode = "binary"
    headers: Mapping[str, str] = field(default_factory=dict)
    trust_store: str | None = None
    event_type: str = "nadi.event"
    content_type: str = "application/octet-stream"

    def __post_init__(self) -> None:
        texts: Any = ("url", "mode", "event_type", "content_type")
        for name, kind in {**dict.fromkeys(texts, str), "trust_store": str | None, "headers": Mapping}.items():
            if not isinstance(value := getattr(self, name), kind):
                words = "a mapping" if kind is Mapping else "a text"
                raise InvalidArgumentError(f"the target's {name} must be {words}, not {value!r}")
        if not self.url.startswith(("http://", "https://")):
            raise InvalidArgumentError(f"the target's URL must begin with http:// or https://, not {self.url!r}")
        self._check_address()
        for option, text in (("event type", self.event_type), ("content type", self.content_type)):
            if not text or not text.isascii() or not text.isprintable():
                raise InvalidArgumentError(f"the {option} must be one line of ASCII, not {text!r}")
        if self.mode not in MODES:
            raise InvalidArgumentError(f"the target's mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.trust_store is not None and not self.url.startswith("https://"):
            raise InvalidArgumentError("trust_store has no effect without https://: remove it")
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidArgumentError(f"headers must be texts by name, not {name!r}: {value!r}")
            if not name.isascii() or not value.isascii() or re.search(r"[\s:]", name) or re.search(r"[\r\n]", value):
                raise InvalidArgumentError(f"invalid header {name!r}: name and value must be one line of ASCII")
            if name.lower().startswith("ce-") or name.lower() in ("content-type", "content-length", "host"):
                raise InvalidArgumentError(f"the header {name} can't be set: nadi sets it for each event")

    def _check_address(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_whole = bool(parts.hostname) and parts.port != 0  # ValueError for an invalid port
        except ValueError:
            is_whole = False
        if not is_whole or re.search(r"[\s\x00-\x1f\x7f]", self.url):
            raise InvalidArgumentError(
                f"invalid target URL {self.url!r}: write it like https://bills.example:8443/events"
            )
        if parts.username is not None or parts.password is not None:
            raise InvalidArgumentError(
                "the target's URL contains a user or password, which every user of the function could see: pass it as "
                "a header, Authorization, instead"
            )
