"""Several servers that are one: who is there, who has which container, and the way to whoever has it."""
