"""What the controller can do, one file for each: create, scale, truncate, seal, delete, transactions, groups, tables.

Each is a record of what is wanted and steps that may run twice; `engine` runs them.
"""
