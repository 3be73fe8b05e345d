"""When a stream's segments are split and merged, by its policy and the load that they were measured to have.

Owns: the rules of both profiles, where a range is cut, what counts as a hot key, and the log of what was decided.
Never sees: commands, workflows, the clock; `periodic.scaling_rounds` carries out what is decided here.
"""
