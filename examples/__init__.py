"""Complete programs that show uses of nadi; `docs/examples.md` lists them. Each runs on its own.

`running` has the common parts: a server to use, and the example's options and exit code; `programs` starts, kills and
restarts an example's jobs.
"""
