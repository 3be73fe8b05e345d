"""A cluster of real processes judged by others' clients beside nadi's own: Pravega's official Java and Python clients,
and a Spark query that copies the stream, exactly once, to another. `jury` has them all; each is a `judge`.
"""
