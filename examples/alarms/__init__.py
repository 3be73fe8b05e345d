"""Alarms from readings, by any number of workers: `python -m examples.alarms`. See docs/process.md."""
