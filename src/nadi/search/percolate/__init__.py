"""Standing queries: stored queries that each event is matched with as it comes, and their hits in a stream.

`records` are the queries as they are kept, and how far the stream is matched with which; `matching` finds those that an
event fits by an index of them; `matcher` does it for what comes and what came before; `catalog` is for users.
"""
