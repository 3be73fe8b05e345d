"""Time in streams: writers' marks, watermarks made of them, and the cut of a moment."""
