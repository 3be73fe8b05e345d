"""The controller's operations, one module each: a check that returns the work to record, and repeatable steps."""
