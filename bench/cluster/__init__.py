"""A cluster over a folder: how long its clients notice a takeover or a hand-over (`moves.py`), and what its writes cost
beside those of one server of a data folder (`writes.py`). `servers.py` starts and ends the servers.
"""
