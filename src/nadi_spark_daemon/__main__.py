"""What Spark starts: `python -m nadi_spark_daemon pyspark.worker`."""

from __future__ import annotations

import sys

from nadi_spark_daemon import without_zip

if __name__ == "__main__":
    sys.path[:] = without_zip(sys.path)
    from pyspark.daemon import manager

    manager()
