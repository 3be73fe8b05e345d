"""Reader groups: many readers share the segments of some streams, each segment with one reader at a time.

`state` is what the readers agree on, `updates` how it changes, `plan` what one reader wants to change next, `watch`
what only time tells; `shared` keeps the state in a table by conditional updates. `source` reads one segment,
`holdings` all that a reader has, `notices` what else it has to tell; `reader` puts these together, and gives `reads`,
or with a serializer `values`.
`manager` makes and finds groups, `group` looks at one and steers it, `retention` tells the controller what it has
released; `blocking` is all of it without await.
"""
