"""A task's rows: those of its pieces, from wherever the option `direct` says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from nadi.client.scan.pieces import Piece
from nadi.client.scan.rows import read_rows
from nadi.spark.connections import begin_task, client_of
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading.direct.blocks import DirectOrNot


def read_pieces(options: ReadOptions, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the pieces, one piece after the other, each in offset order."""
    begin_task()
    client = client_of(options.controller)
    return read_rows(options, client, pieces, DirectOrNot(options, client))
