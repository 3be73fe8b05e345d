"""Verifies a cluster of real processes with foreign clients in addition to nadi's own: Pravega's official Java and
Python clients, and a Spark query that copies the stream to another one, exactly once. `trial` runs them; each is a
`verifier`.
"""
