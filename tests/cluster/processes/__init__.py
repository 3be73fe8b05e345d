"""A cluster of real processes: servers over a folder or a fake S3, and clients that note what they were promised, while
servers are killed, paused, stopped and cut off. `cluster` has the processes, `load` what clients do, `history` what
must hold of it.
"""
