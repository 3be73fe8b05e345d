"""The controller's REST face, beside gRPC: Pravega's paths under `/v1`, health, and a description of itself.

`routes` lists every endpoint with what it takes, returns and needs; `app` serves that list and `openapi`
describes it, so the two can't disagree. Handlers call `Controller` and nothing else.
"""
