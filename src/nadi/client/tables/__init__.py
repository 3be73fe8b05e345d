"""Tables: the hash table of one segment, and key-value tables of many partitions."""
