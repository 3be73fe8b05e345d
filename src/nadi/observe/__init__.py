"""What a running server reports about itself: its health, as a tree of components; metrics, messages, and spans.

Defines the states and how one follows from many, what a metric is, and how messages and spans are written. It never
sees the parts it reports on, as they, or whoever runs them, say how they are; nor who asks, as gRPC and REST stand
above it.
"""
