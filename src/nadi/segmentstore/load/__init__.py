"""How much passes into each segment, and where in the key space: counted as frames become durable, told when asked.

It owns numbers in memory, and never sees an event, a file or a connection. Nothing of it survives a restart.
"""
