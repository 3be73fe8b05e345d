"""Inspects and repairs a folder that no server runs in.

Changes nothing without a request, and never deletes anything.
"""
