"""The error that ends a lake's writer."""

from __future__ import annotations

from nadi.errors import NadiError


class LakeStoppedError(NadiError):
    """The lake can't go on at its cut by itself: the message says what to change. Nothing is lost: started again, it
    continues from there."""
