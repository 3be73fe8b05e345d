"""Where a store of chunks keeps its objects: a folder, an object store, or HDFS; `place` is what each of them does."""
