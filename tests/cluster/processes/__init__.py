"""A cluster of real processes: servers over a folder or a fake S3, and clients that record their acknowledgements,
while servers are killed, paused, stopped and cut off. `cluster` runs the processes, `load` the clients' work, `history`
checks the results.
"""
