"""Call the controller: RPCs, policies, credentials, timeouts.

Owns the only gRPC channel and knows the meaning of its calls. Never sees a segment store.
"""
