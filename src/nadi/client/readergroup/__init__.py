"""Reader groups: many readers share the segments of some streams, each segment with one reader at a time.

`state` is what the readers agree on and how it changes; `plan` what one reader wants to change next;
`shared` keeps the state in a table by conditional updates; `source` reads one segment; `reader` puts
these together; `group` is how a group is made, looked at and steered; `blocking` is all of it without await.
"""
