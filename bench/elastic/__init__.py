"""A demonstration that streams scale themselves, and that no event is lost, doubled or out of order meanwhile.

A plan (`plan.py`: which events, how many each second) is written by one process (`writer.py`, or the official Java
client) to a server in another, read by a group of readers (`reader.py`) and by a Spark query (`spark_query.py`), and
watched by a recorder (`recorder.py`). Each event carries its key and its number among that key's events
(`event.py`), so that afterwards `verdict.py` can judge what was read, and `scalings.py` how fast the stream followed.
`run.py` starts and ends it all; `forms.py` has the loads to choose from; `report.py` prints.
"""
