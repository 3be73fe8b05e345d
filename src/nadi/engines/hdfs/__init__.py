"""HDFS as a store of chunks, and of the one small value that says whose they are; never of a cluster's log.

`where` says what a URL may be, `client` is the only place that knows the package `hdfs-native`, `calls` runs it in
a loop of its own, `failures` says its errors in words; `files` are objects, `engine` and `registry` what a claim stands
on.
"""
