"""Pravega's wire protocol as pure state machines: bytes in, commands out, and back."""
