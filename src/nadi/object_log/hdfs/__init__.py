"""HDFS as a store of chunks and of the small value that names their owner; it can't hold a cluster's log."""
