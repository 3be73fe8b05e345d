"""Events between two cuts as Arrow: planned as segment ranges that any process can read, and read in batches.

`pieces` plans the ranges of each reader, `rows` builds the columns, with `values` where events are parsed. Spark tasks
and a `Scan` share this code.
"""
