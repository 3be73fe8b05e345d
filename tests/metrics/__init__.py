"""What is served to those who watch: `/metrics` as Prometheus reads it, the dashboard, and the alerts."""
