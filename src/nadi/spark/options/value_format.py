"""What a read says of its events' values: `value_format`, and the options that go with it.

>>> from nadi.spark.options.value_format import value_options_of
>>> value_options_of({"value_format": "json", "value_schema": "wh long"})
ValueOptions(format='json', mode='PERMISSIVE', ddl='wh long', version=None)
"""

from __future__ import annotations

from collections.abc import Mapping

from nadi.client.values.options import DOCUMENTS, DROP, FAIL, FORMATS, PERMISSIVE, ValueOptions
from nadi.errors import InvalidArgumentError
from nadi.limits import SCHEMA_MAX_VERSIONS
from nadi.spark.options.values import number

_OTHERS = ("value_schema", "value_version", "value_mode")


def value_options_of(options: Mapping[str, str]) -> ValueOptions | None:
    """What the options say; None if events aren't to be parsed."""
    text = options.get("value_format")
    for other in _OTHERS:
        if other in options and text is None:
            raise InvalidArgumentError(f"the option {other!r} has no effect without 'value_format'")
    if text is None:
        return None
    if text.lower() not in FORMATS:
        raise InvalidArgumentError(f"the option 'value_format' is {text[:40]!r}: it must be {', '.join(FORMATS)}")
    if "metadata" in options:
        raise InvalidArgumentError("the options 'metadata' and 'value_format' exclude each other")
    found, ddl = text.lower(), options.get("value_schema")
    if ddl is not None and found not in DOCUMENTS:
        raise InvalidArgumentError(
            f"the option 'value_schema' has no effect with 'value_format' = {found}: its schema is the stream's, "
            "of which 'value_version' names a version"
        )
    if ddl is not None and "value_version" in options:
        raise InvalidArgumentError("the options 'value_schema' and 'value_version' exclude each other")
    mode = options.get("value_mode", PERMISSIVE).upper()
    if mode not in (PERMISSIVE, DROP, FAIL):
        raise InvalidArgumentError(
            f"the option 'value_mode' is {mode[:40]!r}: it must be {PERMISSIVE}, {DROP} or {FAIL}"
        )
    has_version = "value_version" in options
    version = number(options, "value_version", 1, 1, SCHEMA_MAX_VERSIONS) if has_version else None
    return ValueOptions(found, mode, ddl, version)
