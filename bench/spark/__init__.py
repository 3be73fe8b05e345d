"""`script/bench spark`: reading, micro-batches and writing in Spark, compared with Parquet and Spark's `rate` source.

On a shared machine, a rate alone means little; so each round measures nadi and its reference one after the other, and
the marks are ratios of their medians. `forms` is the command; each part is a module.
"""
