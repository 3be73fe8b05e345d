"""`nadi search`: `indexes` for full-text search, `standing` for queries that wait for events."""
