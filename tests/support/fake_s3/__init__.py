"""A small S3 with conditional puts that fails on demand: a bucket `bucket` in memory or in a folder, on loopback.

In a test's own loop it is `async with FakeS3() as s3`, whose `faults` the test sets; in a process of its own
`python -m tests.support.fake_s3 --port 0 --folder DIR`, which prints its URL, takes faults at `PUT /-/faults`
and tells at `GET /-/counts` how many requests it had.
It speaks as much of Google's dialect as conditions need: generations. Signatures aren't checked.
"""

from tests.support.fake_s3.faults import EXPRESS, STANDARD, Faults
from tests.support.fake_s3.server import FakeS3

__all__ = ["EXPRESS", "STANDARD", "FakeS3", "Faults"]
