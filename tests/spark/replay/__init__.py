"""Replay of a new version of a job: its takeover, without Spark and with it."""
