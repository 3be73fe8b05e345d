#!/usr/bin/env python3
"""A reducer of Hadoop Streaming: reads lines of meter, tab, reading, sorted by meter; writes the watt-hours of each."""

from __future__ import annotations

import json
import sys
from itertools import groupby

for meter, lines in groupby(sys.stdin, lambda line: line.partition("\t")[0]):
    total = sum(json.loads(line.partition("\t")[2])["wh"] for line in lines)
    sys.stdout.write(f"{meter}\t{total}\n")
