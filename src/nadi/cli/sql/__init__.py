"""`nadi sql`: queries of streams. `query` finds the streams in a query, `views` makes them known to DuckDB."""
