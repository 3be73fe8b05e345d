"""A small S3 with conditional puts that fails on demand: a bucket `bucket` in memory or in a folder, on loopback.

In a test's own loop use `async with FakeS3() as s3` and set its `faults`; as a process run
`python -m tests.support.fake_s3 --port 0 --folder DIR`, which prints its URL, accepts faults at `PUT /-/faults`
and reports request counts at `GET /-/counts`.
It speaks as much of Google's dialect as conditions need: generations. Signatures aren't checked.
"""

from tests.support.fake_s3.faults import EXPRESS, STANDARD, Faults
from tests.support.fake_s3.server import FakeS3

__all__ = ["EXPRESS", "STANDARD", "FakeS3", "Faults"]
