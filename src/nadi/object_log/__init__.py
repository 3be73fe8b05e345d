"""Storage interfaces of a cluster: write-once objects and compare-and-set values (`engine`), and their implementations.
They know nothing of containers, logs or servers.
"""
