"""How work runs: intents recorded first, steps that can be repeated, done after a crash."""
