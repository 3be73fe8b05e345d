"""Standing queries: stored queries that each event is matched with as it comes, and their hits in a stream.

`records` are the queries as they are kept, `adding` and `removing` how they come and go, `matching` finds those that
an event fits by an index of them, `progress` says how far the stream is matched, and with which queries, `hits` what a
hit is and that it is written once. `matcher` does it while events come, `past` for a new query over what came before
it. `catalog` is for users.
"""
