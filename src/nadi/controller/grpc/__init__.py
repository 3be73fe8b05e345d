"""The controller over gRPC: message conversions, memory limits for requests, and error statuses."""
