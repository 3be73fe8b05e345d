"""`script/bench spark`: reading, micro-batches and writing in Spark, beside Parquet and Spark's own `rate` source.

On a machine that is shared, a rate alone says little; so each round measures nadi and what it is compared with one
after the other, and the marks are ratios of their medians. `forms` is the command, a module each the parts.
"""
