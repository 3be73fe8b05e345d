"""What there is to know about a stream, kind by kind, for `nadi.v1.Reports` and for people.

Owns: how each kind of `nadi.model.reports` is put together, a page at a time. Never sees: gRPC, REST, who asks.
"""
