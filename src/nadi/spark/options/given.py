"""The options of one use, checked: one without effect is refused, naming the alternatives, and so are those that
exclude each other. What each may be is in `table`.

Spark hands a source or sink everything the user set, including its own settings of a sink's query: those are let
through. It puts a path beside them only where one was given to load, save or start. Programs made for Pravega's
connector give it any of its options anywhere, so `format("pravega")` lets those through, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from nadi.client.control.security import Basic, Bearer, Credentials, split_uri
from nadi.client.scan.connection import Connection
from nadi.client.values.options import ValueOptions, value_options
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError
from nadi.model.delivery import EXACTLY_ONCE, Guarantee, check_delivery
from nadi.naming import is_number
from nadi.spark.options.table import BY_KEY, CHOICES, EXCLUDED, NEEDED, NUMBERS, OPTIONS, Format, Use, default_in

NO_ENDING_MOMENT = (
    "a restarted query would find another cut for a moment still to come: end it at a cut or a bookmark with 'end', or "
    "read the slice as a batch"
)
_CUTS = "give 'start' (head, tail, a bookmark, a time or a stream cut)"
_INSTEAD = {
    "endingtimestamp": NO_ENDING_MOMENT,
    "startingoffsets": _CUTS,
    "startingoffsetsbytimestamp": "give 'startingTimestamp'",
    "endingoffsets": "give 'end' (head, tail, a bookmark, a time or a stream cut)",
    "endingoffsetsbytimestamp": "give 'endingTimestamp'",
    "maxfilespertrigger": "give 'approx_bytes_per_trigger'",
    "minpartitions": "give 'min_partition_bytes' and 'max_partitions'",
    "subscribe": "name streams with 'scope' and 'stream' or 'streams'",
    "subscribepattern": "give 'scope' and 'stream_pattern'",
    "assign": "name streams with 'scope' and 'stream' or 'streams'",
    "kafka.bootstrap.servers": "give 'controller'",
    "path": "a stream is named by 'scope' and 'stream': leave out the path",
    "checkpointlocation": "it belongs to writeStream",
    "queryname": "it belongs to writeStream",
}
# what Spark's own engine reads from the options of a streaming query, which it hands on
_SPARKS = {Use.WRITE_STREAM: ("checkpointlocation", "queryname", "asyncprogresstracking")}
# what CREATE TABLE adds to its options
_TABLES = ("owner", "provider", "option.", "external", "location", "is_managed_location")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A stream and the controller that knows it."""

    controller: Connection
    scope: str
    stream: str


class Given(dict[str, str]):
    """The options that were given, by their first names in small letters. format_: whose defaults hold."""

    def __init__(self, options: Mapping[str, str], format_: Format = Format.NADI) -> None:
        super().__init__(options)
        self.format = format_

    @classmethod
    def checked(cls, given: Mapping[str, str], use: Use, format_: Format) -> Given:
        """Without Spark's own; InvalidArgumentError unless each has an effect in this use, beside the others."""
        found: dict[str, str] = {}
        for name, value in ((name.lower(), value) for name, value in given.items()):
            option = BY_KEY.get(name)
            if option is None:
                if not name.startswith((*_TABLES, *_SPARKS.get(use, ()))):
                    raise InvalidArgumentError(_unknown(name))
                continue
            if use not in option.uses:
                if format_ is Format.PRAVEGA and option.is_pravegas:
                    continue
                raise InvalidArgumentError(_without_effect(name, use))
            if option.key in found:
                both = " and ".join(repr(other) for other in (option.name, *option.also))
                raise InvalidArgumentError(f"the options {both} mean the same: give one of them")
            if not value.strip():
                raise InvalidArgumentError(f"the option {name!r} is empty: give it a value, or leave it out")
            found[option.key] = value
        for name, others in EXCLUDED.items():
            for other in others if name.lower() in found else ():
                is_ignored = format_ is Format.PRAVEGA and BY_KEY[other.lower()].is_pravegas
                if other.lower() in found and not is_ignored:
                    raise InvalidArgumentError(f"the options {name!r} and {other!r} exclude each other")
        for name, other in NEEDED.items():
            if name.lower() in found and other.lower() not in found:
                raise InvalidArgumentError(f"the option {name!r} needs {other!r}: say .option({other!r}, ...)")
        return cls(found, format_)

    def needed(self, name: str) -> str:
        if name not in self:
            raise InvalidArgumentError(f"the option {name!r} is missing: say .option({name!r}, ...)")
        return self[name]

    def _text(self, name: str) -> str:
        """The value, or the default, "" if there is none."""
        option = BY_KEY[name.lower()]
        return self.get(option.key) or default_in(option, self.format)

    def flag(self, name: str) -> bool:
        text = self._text(name).lower()
        if text not in ("true", "false"):
            raise InvalidArgumentError(f"the option {name!r} is {text!r}: it must be true or false")
        return text == "true"

    def number(self, name: str) -> int | None:
        """None: it isn't given, and has no default."""
        if name.lower() not in self and not is_number(self._text(name)):
            return None
        text, (low, high) = self._text(name), NUMBERS[name]
        if not is_number(text) or not low <= int(text) <= high:
            raise InvalidArgumentError(
                f"the option {name!r} is {text[:40]!r}: it must be a number from {low:,} to {high:,}"
            )
        return int(text)

    def count(self, name: str) -> int:
        """A number that has a default."""
        number = self.number(name)
        assert number is not None, "its default is one"
        return number

    def choice(self, name: str) -> str:
        """One of the option's choices, or "" where none is given and none the default."""
        text, choices = self._text(name), CHOICES[name]
        for spelt in (text, text.lower()):
            if spelt in choices or not spelt:
                return spelt
        raise InvalidArgumentError(f"the option {name!r} is {text[:40]!r}: it must be {', '.join(choices)}")

    # --- what reads and writes have in common ---------------------------------------------------

    def connection(self) -> Connection:
        uri = self.get("controller", DEFAULT_URI)
        split_uri(uri)  # raises if it is none
        credentials: Credentials | None = None
        if "auth_user" in self:
            credentials = Basic(self["auth_user"], self["auth_password"])
        elif "auth_token" in self:
            credentials = Bearer(self["auth_token"])
        return Connection(uri, credentials, self.get("trust_store"), self.flag("validate_host_name"))

    def value(self) -> ValueOptions | None:
        """What events are parsed as, or encoded as; None if they aren't."""
        version = self.number("value_version")
        return value_options(self.get("value_format"), self.get("value_schema"), version, self.get("value_mode"))

    def delivery(self) -> Guarantee:
        try:
            return check_delivery(self.get("delivery", EXACTLY_ONCE).lower())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"the option 'delivery': {error}") from None


def _without_effect(name: str, use: Use) -> str:
    where = " and ".join(sorted(other.value for other in BY_KEY[name].uses))
    more = f". {_INSTEAD[name]}" if name in _INSTEAD else ""
    return f"the option {name!r} has no effect with {use.value}: it is one of {where}{more}"


def _unknown(name: str) -> str:
    if name in _INSTEAD:
        return f"the option {name!r} has no effect: {_INSTEAD[name]}"
    near = difflib.get_close_matches(name, BY_KEY, 1, 0.7)
    if near:
        return f"there is no option {name!r}: did you mean {near[0]!r}?"
    return f"there is no option {name!r}: there are {', '.join(option.name for option in OPTIONS)}"
