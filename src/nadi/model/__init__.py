"""Values and rules shared by client and server, without I/O: key space, events, stream cuts, records."""
