"""What the controller keeps: records of scopes and streams, their histories, in tables of the segment store."""
