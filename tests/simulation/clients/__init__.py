"""Clients of a simulated server, each in a process of its own, which do what real ones do, and keep on where a call is
lost. `library` has those that use the client library; the others send its commands one at a time."""
