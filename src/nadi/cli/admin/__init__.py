"""Commands for whoever runs a server: serve a data folder, check and repair a stopped one, say who may log in.

Owns: what these commands print and ask. Never sees: clients of a running server, which are the other commands.
"""
