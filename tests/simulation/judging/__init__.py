"""What clients saw, and whether a storage that keeps its word could have shown it to them."""
