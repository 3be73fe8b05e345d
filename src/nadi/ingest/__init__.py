"""Data over HTTP: what a request's body holds, and how it is written, once where its sender names the request."""
