"""What a read says of its events' values: `value_format`, and the options that go with it.

>>> from nadi.spark.options.value_format import value_options_of
>>> value_options_of({"value_format": "json", "value_schema": "wh long"})
ValueOptions(format='json', mode='PERMISSIVE', ddl='wh long', version=None)
"""

from __future__ import annotations

from collections.abc import Mapping

from nadi.client.values.options import ValueOptions, value_options
from nadi.errors import InvalidArgumentError
from nadi.limits import SCHEMA_MAX_VERSIONS
from nadi.spark.options.values import number


def value_options_of(options: Mapping[str, str]) -> ValueOptions | None:
    """What the options say; None if events aren't to be parsed."""
    if "metadata" in options and "value_format" in options:
        raise InvalidArgumentError("the options 'metadata' and 'value_format' exclude each other")
    has_version = "value_version" in options
    return value_options(
        options.get("value_format"),
        options.get("value_schema"),
        number(options, "value_version", 1, 1, SCHEMA_MAX_VERSIONS) if has_version else None,
        options.get("value_mode"),
    )
