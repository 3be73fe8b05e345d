"""The bytes of a segment from wherever they lie, checked, and where events start in them."""
