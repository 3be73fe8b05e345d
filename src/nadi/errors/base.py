"""What all errors of nadi have in common."""


class NadiError(Exception):
    """Base of all errors that nadi raises on purpose."""
