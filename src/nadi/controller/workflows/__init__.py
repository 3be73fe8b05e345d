"""What the controller can do, one file for each: a record of what is wanted, and steps that may run twice."""
