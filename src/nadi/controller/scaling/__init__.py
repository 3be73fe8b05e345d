"""When a stream's segments are split and merged, by its policy and the load that they were measured to have.

Owns: the rules of both profiles, where a range is cut, what counts as a hot key, and the log of what was decided.
`judge` never sees commands, workflows, or the clock; `rounds` carries out what it decides.
"""
