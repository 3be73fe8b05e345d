"""Defaults that more than one part of nadi has to know.

The command line's help prints these values, so this module imports nothing: help needs neither client nor server.
"""

from __future__ import annotations

# where a server listens, and where a client looks for it
DEFAULT_HOST = "127.0.0.1"
DEFAULT_CONTROLLER_PORT = 9090
DEFAULT_REST_PORT = 9091
DEFAULT_STORE_PORT = 12345
DEFAULT_URI = f"tcp://{DEFAULT_HOST}:{DEFAULT_CONTROLLER_PORT}"

# the profile by whose rules streams follow their load
DEFAULT_SCALING = "fast"

# which of a server's messages are shown, and how they are written
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
DEFAULT_LOG_FORMAT, *_ = LOG_FORMATS = ("text", "json")

# where its spans of writes and reads go
DEFAULT_TRACES, *_ = TRACE_KINDS = ("none", "otlp")

# how long a delegation token is valid, and the claim of a bearer token that holds the permissions
DEFAULT_TOKEN_LIFETIME_S = 600
DEFAULT_CLAIM = "nadi"

# containers of a folder or a cluster: a damaged folder's number is found by trying all of them
MOST_CONTAINERS = 1_000
