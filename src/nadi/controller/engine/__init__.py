"""The workflow engine: intents are recorded first, steps are repeatable, and work is resumed after a crash."""
