"""Reading a segment's chunks in tier 2 without the server, in tasks that can reach them (docs/decisions/0016).

Owns: which chunks a task may read, reading them, and when the server is asked after all. Never sees: rows, and what
a query asked for; it gives out the same blocks of events as a client's `read_segment_range`.
"""
