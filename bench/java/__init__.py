"""Pravega's official Java client as a writer: programs of one file each, which `java` compiles as it runs them.

`client.py` has Maven download the client and gives the command for a program. `PlanWriter.java` belongs to
`bench/elastic`; `SpreadWriter.java` to `spread.py`.
"""
