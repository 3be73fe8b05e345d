"""What is served to those who watch: `/metrics` as Prometheus reads it, and the dashboard and the alerts that ask for it."""
