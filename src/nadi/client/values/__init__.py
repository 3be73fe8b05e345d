"""Events read as values: their schema when a read is planned, their columns in its tasks.

A schema of any format becomes an Arrow type (`serializers.types`), and that Spark's. A task parses a batch of events at
once (`parser`), with the format's own module and its library, which nobody else imports. Segments and cuts are
`reading`'s.
"""
