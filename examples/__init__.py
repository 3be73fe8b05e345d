"""Whole programs that show what nadi is for; `docs/examples.md` lists them. Each runs by itself.

`running` has what they share: a server to use, a local Spark, and programs that are started, killed and started again.
"""
