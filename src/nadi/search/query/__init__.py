"""The query language: text to a tree (`parser`), the tree bound to an index's fields, and that as a query of tantivy's
(`bound`). Standing queries are matched by the same bound tree."""
