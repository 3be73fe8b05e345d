"""OpenTelemetry's log records, as OTLP over HTTP carries them."""
