"""What the server tells those who watch it: figures about streams, reader groups and scalings.

Owns: which figures there are, gathering them within limits of time and number, their form for Prometheus. Never sees:
who asks.
"""
