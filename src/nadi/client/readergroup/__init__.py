"""Reader groups: readers share the segments of one or more streams, each segment with one reader at a time.

`state` is the readers' shared state, `updates` the changes to it, and `plan` chooses a reader's next changes;
`stored_state` stores the state in a table by compare-and-set. `assigned_segments` reads a reader's segments; `reader`
combines these and returns `event_reads`, or with a serializer `values`; `outputs` reads batches and records their
results. `manager` creates and opens groups, `group` inspects and controls one. `nadi.client.blocking` has the blocking
counterparts.
"""
