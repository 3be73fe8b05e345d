"""NATS JetStream as the log of a cluster: a stream with a subject for each object's name, through `nats-py`."""
