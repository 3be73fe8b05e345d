"""Pravega's official Java client as a writer: single-file programs, which `java` compiles as it runs them.

`client.py` downloads the client with Maven and returns the command for a program. `PlanWriter.java` belongs to
`bench/elastic`; `SpreadWriter.java` to `spread.py`.
"""
