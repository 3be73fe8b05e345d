"""The controller's REST face: Pravega's paths under `/v1`, health, and a description of itself.

`resources` and `own` have every endpoint with what it takes, returns and needs; `app` serves and describes them.
"""
