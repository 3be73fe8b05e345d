"""Reader groups: many readers share the segments of some streams, each segment with one reader at a time.

`state` is what the readers agree on, `updates` how it changes, `plan` what one reader wants to change next;
`stored_state` keeps the state in a table by conditional updates. `holdings` reads the segments that a reader has;
`reader` puts these together, and returns `event_reads`, or with a serializer `values`; `membership` keeps it in the
group until it leaves; `outputs` reads batches and records what was made of them. `manager` creates and finds groups,
`group` inspects and steers one, `retention` reports to the controller what the group has released;
`nadi.client.blocking` offers all of it without await.
"""
