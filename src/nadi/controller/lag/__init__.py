"""How far reader groups are behind the tails of their streams.

Owns: where groups stand (`states`), and what lies after that, in bytes and in time (`behind`). Never sees: who asks.
"""
