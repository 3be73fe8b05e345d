"""Which errors a shop's services log, counted over windows of five minutes; late lines and all, each exactly once."""
