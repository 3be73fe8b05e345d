"""A demonstration that streams scale themselves, and that no event is lost, duplicated or reordered meanwhile.

One process (`writer.py`, or the official Java client) writes a plan (`plan.py`: the events, and their number per
second) to a server in another, a group of readers (`reader.py`) and a Spark query (`spark_query.py`) read it, and a
recorder (`recorder.py`) watches it. Each event has its key and its number among that key's events (`event.py`), from
which `verdict.py` judges the events read, and `scalings.py` how fast the stream followed the load. `run.py` starts and
ends everything; `forms.py` has the selectable loads; `report.py` prints.
"""
