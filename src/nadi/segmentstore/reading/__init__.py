"""The bytes of a segment from wherever they are stored, checked, and where events start in them."""
