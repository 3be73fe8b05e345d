"""HDFS as a store of chunks, and of the one small value that says whose they are; never of a cluster's log."""
