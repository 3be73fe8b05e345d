"""Syslog into a stream: RFC 5424, and older messages as they are, over UDP, TCP and TLS."""
