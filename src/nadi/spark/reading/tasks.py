"""What the tasks of a read get: slices of segments, dealt out."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from nadi.client.places.cuts import SegmentSlice
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading import plan


class SlicesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, slices: tuple[SegmentSlice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


def partitions_of(options: ReadOptions, slices: list[SegmentSlice]) -> list[SlicesPartition]:
    """The partitions, at least one: with none, Spark calls `read` with None."""
    tasks = plan.tasks(slices, options.max_partitions, options.min_partition_bytes)
    return [SlicesPartition(task) for task in tasks] or [SlicesPartition(())]
