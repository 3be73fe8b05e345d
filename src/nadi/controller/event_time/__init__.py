"""Time in streams: writers' marks, watermarks made from them, and the cut at a point in time."""
