"""Commands for administrators: start a server, check and repair a stopped data folder, manage users.

They don't use clients of a running server, which are the other commands.
"""
