"""What a client asks of the controller, and how: calls, policies, credentials, patience.

Owns the only gRPC channel and knows what its calls mean. Never sees a segment store.
"""
