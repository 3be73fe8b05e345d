"""A state's file as such: its pages, whether it is intact, and made anew for checksums."""
