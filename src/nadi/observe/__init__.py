"""What a running server reports about itself: its health, as a tree of components.

Defines the states and how one follows from many. It never sees the parts it reports on, as they, or whoever runs them,
say how they are; nor who asks, as gRPC and REST stand above it.
"""
