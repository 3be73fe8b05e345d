"""NATS JetStream as the log of a cluster: a stream with one subject per object name, through `nats-py`."""
