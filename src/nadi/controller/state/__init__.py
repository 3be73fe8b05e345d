"""The controller's state: records of scopes and streams and their histories, in tables of the segment store."""
