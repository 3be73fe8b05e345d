"""Encryption at rest (`docs/decisions/0044`): `sealing` encrypts blocks, with data keys that `key_ring` stores in the
store, wrapped by a master key of `master_keys`."""
