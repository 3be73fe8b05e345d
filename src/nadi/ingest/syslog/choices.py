"""What one may choose about events; the command line needs it before anything is loaded."""

from __future__ import annotations

from enum import StrEnum


class Form(StrEnum):
    JSON = "json"
    RAW = "raw"


class Key(StrEnum):
    """host: that a message names, else the address it came from; app: that it names, else as for host."""

    HOST = "host"
    APP = "app"
    ADDRESS = "address"
    NONE = "none"
