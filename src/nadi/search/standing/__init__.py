"""Standing queries: stored queries that each event is matched with as it comes, and their hits in a stream.

`records` are the queries as they are kept, `adding` how they come and go, `matching` finds those that an event fits by
an index of them, and says what a hit is; `progress` says how far the stream is matched, and with which queries;
`matcher` does it, for what comes and for what came before a new query. `catalog` is for users.
"""
