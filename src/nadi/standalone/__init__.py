"""A complete server in one process: segment store and controller over one data folder or a cluster's store."""

from nadi.config import ServerConfig, ServerSecurity
from nadi.standalone.embedded import EmbeddedServer, embedded

__all__ = ["EmbeddedServer", "ServerConfig", "ServerSecurity", "embedded"]
