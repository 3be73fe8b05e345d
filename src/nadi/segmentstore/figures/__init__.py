"""What a segment store tells those who watch it.

Owns: which figures there are, what each means, and taking them from a running store. Never sees: who asks, streams.
"""
