"""Spans of writes and reads, as OpenTelemetry's SDK gets them."""
