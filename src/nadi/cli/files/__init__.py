"""Streams and files: `nadi export` and `nadi import`, in JSON lines, Parquet and Avro."""
