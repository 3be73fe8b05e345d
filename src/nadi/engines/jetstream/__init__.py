"""NATS JetStream as the log of a cluster: a stream with a subject for each object's name, through `nats-py`.

`where` reads URLs and options, `link` is one connection, `connection` makes another when one ends, `stream` makes and
checks the stream, and `engine` is the `LogEngine`. `failures` says what errors mean.
"""
