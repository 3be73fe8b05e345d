"""What simulated programs run on: processes with clocks of their own, a network, disks, and an object store.

All of it takes place in one event loop, in virtual time, and knows nothing of what runs on it.
"""
