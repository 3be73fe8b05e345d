"""Ingest over HTTP: parses request bodies and writes their events, once for requests with an idempotency key."""
