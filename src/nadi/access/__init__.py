"""Who may do what: resources and permissions, callers, delegation tokens, TLS.

A request to the controller (or REST) carries credentials; `Gate` makes a `Caller` of them, and the
caller's `Permissions` say what it may do on a resource such as `prn::/scope:home/stream:meters`. For
data the controller issues a delegation token, which says the same about one stream for a limited time, and
the segment store checks only that token. Controller and segment store share nothing but `TokenKey`.
"""
