"""A cluster over a folder: how long its clients notice a takeover or a handover (`moves.py`), and the cost of writes
compared with one server of a data folder (`writes.py`). `servers.py` starts and ends the servers.
"""
