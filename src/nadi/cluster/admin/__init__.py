"""What an operator of a cluster is told, and what is done for one: reports, draining, figures, and cleaning the store.

Nothing here decides who has a container, and no server needs any of it to serve.
"""
