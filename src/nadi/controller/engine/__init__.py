"""Work that is finished whatever happens: intents recorded first, steps that can be repeated, done after a crash.

Owns how work runs; what it does, `workflows` says.
"""
