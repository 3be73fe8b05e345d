"""Rows as events: once each, whatever is killed or run again."""
