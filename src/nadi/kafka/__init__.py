"""A Kafka broker in front of nadi's streams."""
