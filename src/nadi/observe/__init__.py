"""Observability of a running server: a health tree of components, metrics, log messages, and spans.

Defines health states and how they combine, metrics, and the formats of messages and spans. It knows neither the
components it reports on, which provide their states, nor the interfaces (gRPC, REST) that expose the reports.
"""
