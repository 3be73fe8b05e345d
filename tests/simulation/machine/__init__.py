"""The platform of simulated programs: processes with clocks, a network, disks, and an object store.

All of it runs in one event loop, in virtual time, and is independent of the programs.
"""
