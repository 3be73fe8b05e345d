"""A Kafka broker for comparison, from Maven Central's jars; `Missing` has the reason if it is unavailable."""
