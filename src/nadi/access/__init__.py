"""Authenticate and authorize callers: resources, permissions, delegation tokens, TLS, limits per peer.

A request to the controller (or REST) carries credentials; `Gate` turns these into a `Caller`, whose `Permissions`
define its rights on a resource such as `prn::/scope:home/stream:meters`. For data access the controller issues a
delegation token with the rights on one stream for a limited time; the segment store checks only this token. Controller
and segment store share only the `TokenKey`.
"""
