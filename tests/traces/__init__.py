"""Spans of writes and reads, as received by OpenTelemetry's SDK."""
