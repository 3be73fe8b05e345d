"""One history as stream, lake and index, under writes, scaling, truncation and kills: all engines return the same
answers. `readings` is the data, `writer_main` writes it, `parts` runs the processes, `engines` are queried, and `judge`
causes the faults and compares the answers.
"""
