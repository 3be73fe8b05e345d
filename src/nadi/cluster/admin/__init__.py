"""Reports, draining, metrics and garbage collection: no server needs them to serve, and they never decide ownership."""
