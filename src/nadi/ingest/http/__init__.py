"""Data over HTTP: what a request's body holds, and how it is written, once where the sender says which request it is."""
