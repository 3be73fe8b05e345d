"""The query language: parses text to a tree (`parser`), binds the tree to an index's fields, and translates it to a
query of tantivy (`bound`). Standing queries evaluate the same bound tree."""
