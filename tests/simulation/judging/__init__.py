"""What clients saw, and checks that the storage guarantees allow it."""
