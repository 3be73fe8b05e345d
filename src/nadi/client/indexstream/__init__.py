"""Index streams: fixed-size records with nondecreasing fields in a one-segment stream, as in official clients."""
