"""What a client asks of the controller, and how: calls, policies, credentials, patience.

Owns the one gRPC channel and what its calls mean. Never sees a segment store.
"""
