"""Events read as values: their schema when a read is planned, their columns in its tasks.

A schema of any format becomes an Arrow type (`serializers.types`), and a Spark type from that. A task parses a batch of
events at once (`parser`) with the format's module, the only importer of its library. `reading` handles segments and
cuts.
"""
