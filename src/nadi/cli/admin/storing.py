"""Options that name a cluster's store or a data folder's tier 2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nadi.config import OPTIONS
from nadi.errors import InvalidArgumentError

_STORE_HELP, _OPTION_HELP, TIER2_HELP = (OPTIONS[name].help for name in ("store", "store_options", "tier2"))

StoreUrl = Annotated[str, typer.Option("--store", envvar="NADI_STORE", help=_STORE_HELP)]
StoreOptions = Annotated[list[str] | None, typer.Option("--store-option", metavar="KEY=VALUE", help=_OPTION_HELP)]
Tier2Options = Annotated[list[str] | None, typer.Option("--tier2-option", metavar="KEY=VALUE", help=_OPTION_HELP)]
DataFolder = Annotated[Path, typer.Argument(help="Data folder of a stopped server.")]

_SECRET = re.compile(r"SECRET|TOKEN|KEY|PASSWORD|SAS|SIGNATURE|CREDENTIAL")
_PUBLIC = re.compile(r"KMS_KEY_ID|BUCKET_KEY_ENABLED|SKIP_SIGNATURE")
_OF_SCHEMES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_STORAGE_"}


def store_options(url: str, given: Sequence[str] | None, name: str = "--store-option") -> dict[str, str]:
    """Parse the `key=value` options of a store.

    InvalidArgumentError: an option has no value, is repeated, or contains a secret, which command lines expose.

    >>> store_options("s3://bucket/nadi", ["endpoint=http://127.0.0.1:8333", "region=eu-central-1"])
    {'endpoint': 'http://127.0.0.1:8333', 'region': 'eu-central-1'}
    """
    options = _parsed(name, "endpoint=https://s3.example.com", given)
    for key in options:
        _check_public(name, url, key)
    return options


def log_options(given: Sequence[str] | None, name: str = "--log-option") -> dict[str, str]:
    """Parse the `key=value` options of a log in NATS; its engine checks names, and rejects secrets.

    >>> log_options(["replicas=3"])
    {'replicas': '3'}
    """
    return _parsed(name, "replicas=3", given)


def _parsed(name: str, example: str, given: Sequence[str] | None) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        key = key.strip().lower()
        if not equals or not key or not value:
            raise InvalidArgumentError(f"{name} must be key=value, such as {example}")
        if key in options:
            raise InvalidArgumentError(f"{name} {key} is given twice: remove one")
        options[key] = value
    return options


def _check_public(option: str, url: str, key: str) -> None:
    name = key.upper()
    if not _SECRET.search(name) or _PUBLIC.search(name):
        return
    prefix = _OF_SCHEMES.get(url.partition(":")[0], "")
    variable = name if name.startswith(prefix.partition("_")[0] + "_") else prefix + name
    raise InvalidArgumentError(
        f"{option} {key} is a secret, and other users of this machine can see command lines: "
        f"set the environment variable {variable} instead"
    )
