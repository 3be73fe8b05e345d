"""Events between two cuts as Arrow: planned in pieces that anybody can read, and read a batch at a time.

`pieces` says who reads what, `rows` makes the columns, with `values` where events are parsed. What a
Spark task reads, and what a `Scan` does, differ in nothing else.
"""
