"""Standing queries: stored queries that are matched with each new event; their hits go to a stream.

`records` stores the queries and the progress of matching; `query_index` finds the queries that an event matches;
`matcher` matches new and older events; `catalog` is the users' API.
"""
