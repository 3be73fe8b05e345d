"""Monitoring: `/metrics` as Prometheus reads it, the dashboard, and the alerts."""
