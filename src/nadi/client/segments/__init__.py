"""Access to segment stores: connections, tokens, segment locations, and reads and appends of bytes.

Owns the connections and the retries after a connection is lost. Of events it knows only the headers, never how
writers, readers and tables interpret them.
"""
