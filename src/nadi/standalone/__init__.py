"""The whole system in one process: segment store and controller over one data folder."""

from nadi.standalone.embedded import EmbeddedServer, embedded
from nadi.standalone.security import ServerSecurity
from nadi.standalone.server import Server

__all__ = ["EmbeddedServer", "Server", "ServerSecurity", "embedded"]
