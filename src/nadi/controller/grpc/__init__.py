"""The controller over gRPC: messages from and to Python values, memory for requests, errors as statuses."""
