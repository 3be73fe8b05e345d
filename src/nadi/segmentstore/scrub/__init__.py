"""Reading everything that is stored, once a week: the task that does so, and the file that keeps its place."""
