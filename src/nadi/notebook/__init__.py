"""For notebooks: the player, pictures of segments, and tables of what a client returns.

Owns: a widget that plays a stream in a cell's output with the modules of nadi's own page (`widget`, `bundle`), and what
answers it from the kernel (`projector`): a browser asks over the widget's comm, so it need not reach nadi. Never sees:
HTTP, and files of a server. The extra `nadi[notebook]` brings what it needs; single values show themselves without it
(`nadi.display`).

>>> import nadi.notebook
>>> with nadi.StreamManager() as manager:  # doctest: +SKIP
...     nadi.notebook.play(manager, "home", "meters")
"""

from __future__ import annotations

from nadi.notebook.pictures import Picture, plot_segments
from nadi.notebook.playing import play
from nadi.notebook.tables import Table, table

__all__ = ["Picture", "Table", "play", "plot_segments", "table"]
