"""A Kafka broker to compare with, from Maven Central's jars; `Missing` says why there is none."""
