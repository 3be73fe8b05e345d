"""Defaults shared by several parts of nadi.

The command line's help prints them, so this module imports nothing: help must not load client or server.
"""

from __future__ import annotations

# address that a server listens on and a client connects to
DEFAULT_HOST = "127.0.0.1"
DEFAULT_CONTROLLER_PORT = 9090
DEFAULT_REST_PORT = 9091
DEFAULT_STORE_PORT = 12345
DEFAULT_KAFKA_PORT, DEFAULT_KAFKA_SCOPE, DEFAULT_KAFKA_PARTITIONS = 9092, "kafka", 12
DEFAULT_URI = f"tcp://{DEFAULT_HOST}:{DEFAULT_CONTROLLER_PORT}"

# scaling profile of streams
DEFAULT_SCALING = "fast"

# level and format of a server's log
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
DEFAULT_LOG_FORMAT, *_ = LOG_FORMATS = ("text", "json")

# formats of events that are read as values, and of drawn charts
VALUE_FORMATS = ("json", "msgpack", "avro", "protobuf", "arrow", "kafka")
PICTURE_SUFFIXES = (".svg", ".png", ".pdf")

# exporter of a server's traces
DEFAULT_TRACES, *_ = TRACE_KINDS = ("none", "otlp")

# lifetime of delegation tokens, the claim of a bearer token that lists permissions, and what names a certificate's user
DEFAULT_TOKEN_LIFETIME_S = 600
DEFAULT_CLAIM = "nadi"
DEFAULT_CERTIFICATE_FIELD = "cn"

# containers of a folder or cluster: repair tries all numbers to find a damaged folder's
MOST_CONTAINERS = 1_000
