"""The query language: text to a tree (`parser`), the tree bound to an index's fields (`bound`), and that as a query of
tantivy's (`translation`). Standing queries are matched by the same bound tree."""
