"""`Replay`: the new version's query, and the steps of its takeover, in a Spark session.

The same object serves before and after: `start` runs the query into the trial stream or, once it has taken over,
into the output. Whoever dies, make it again with the same arguments and go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nadi.client.places.moments import HEAD
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.naming import check_name
from nadi.spark.connections import client_of
from nadi.spark.handover.record import Handover, State
from nadi.spark.options.given import Given
from nadi.spark.replay.comparison import Comparison, KeyOf
from nadi.spark.replay.takeover import Behind, Takeover

_TOLD_EVERY_S = 5.0


class Replay:
    """A new version of a job, from the old one's past to its place.

    spark: the session that runs the new version. job: makes the rows to be written of the rows that are read. home: the
    options `controller`, `scope` and those to log in. old: the option `handover` of the old version's query. new: the
    new version's, and this replay's name. start: where it starts, `head`, a bookmark, a time or a cut's text. trial:
    the stream it writes until it takes over; made and deleted by the replay. read, write: more options of its query.
    """

    def __init__(
        self,
        spark: Any,
        job: Callable[[Any], Any],
        home: Mapping[str, str],
        *,
        stream: str,
        output: str,
        old: str,
        new: str,
        checkpoint: str,
        start: str = HEAD,
        trial: str | None = None,
        read: Mapping[str, str] | None = None,
        write: Mapping[str, str] | None = None,
    ) -> None:
        given = {name.lower(): value for name, value in home.items()}
        if old == new:
            raise InvalidArgumentError(f"both versions are named {old!r}: give the new one its own name")
        self._spark, self._job, self._home = spark, job, dict(home)
        self._old, self._new, self._stream = check_name("query", old), check_name("query", new), stream
        self._checkpoint, self._start = checkpoint, start
        self._read, self._write = dict(read or {}), dict(write or {})
        scope = check_name("scope", given.get("scope", ""))
        self._client = client_of(Given(given).connection())
        self._takeover = Takeover(
            self._client.manager, scope, stream, old=old, new=new, output=output, trial=trial or f"{output}-{new}"
        )
        self.query: Any = None

    def start(self) -> Any:
        """Begin the replay, or go on with it; return its query. Does nothing if that is running."""
        found = self._client.run(self._takeover.begin(self._start))
        if found.state is State.ABANDONED:
            raise ConflictError(f"the replay {self._new} was abandoned")
        return self._run(found)

    def behind(self) -> Behind:
        """How far the new version is behind the old one, and how long that will take."""
        return self._client.run(self._takeover.behind())

    def wait_until_caught_up(self, timeout_s: float = 86_400.0, tell: Callable[[str], object] | None = print) -> Behind:
        """Wait until the new version has read what the old one has, printing progress; it goes on to follow it.

        ConflictError after timeout_s; the query's own error if it fails. tell: None prints nothing.
        """
        give_up, told = time.monotonic() + timeout_s, 0.0
        while True:
            self._check()
            at = self.behind()
            if at.state is not State.FOLLOWING or at.is_even:
                return at
            if time.monotonic() >= give_up:
                raise ConflictError(f"{self._new} has not caught up with {self._old} after {timeout_s:.0f} s: {at}")
            if tell is not None and time.monotonic() - told >= _TOLD_EVERY_S:
                tell(f"{self._new}, {at}")
                told = time.monotonic()
            time.sleep(0.2)

    def compare(self, key: KeyOf | None = None, examples: int = 5) -> Comparison:
        """Compare what both versions made of the same input, up to the latest place where both have been.

        From the start, if the new version started at the head; else from where it had first caught up. key: of an
        event, for the order within keys to be compared, too.
        """
        return self._client.run(self._takeover.compare(key, examples))

    def switch(
        self,
        accept: Callable[[Comparison], bool] | None = None,
        *,
        if_equal: bool = False,
        key: KeyOf | None = None,
        timeout_s: float = 600.0,
    ) -> Any:
        """Have the new version take over at one cut; return its query, which writes the output now.

        accept: looks at all that both made, up to the cut, and says whether to; if_equal: only if nothing differs. If
        not, the replay is abandoned and ConflictError raised: start the old version again, it goes on.
        """
        if if_equal:
            accept = _is_equal
        found = self._client.run(self._takeover.ask())
        if found.state is not State.SWITCHED:
            self._run(found)
        found = self._client.run(self._takeover.wait_until_done(timeout_s))
        if found.state is State.FIXED:
            if accept is not None:
                compared = self.compare(key)
                if not accept(compared):
                    self.abandon()
                    raise ConflictError(
                        f"{self._new} doesn't take over: {compared}. Start {self._old} again: it goes on where it was"
                    )
            found = self._client.run(self._takeover.finish())
        if found.state is not State.SWITCHED:
            raise ConflictError(f"the replay {self._new} is {found.state.value}")
        self._stop()
        query = self._run(found)
        self._client.run(self._takeover.delete_trial())
        return query

    def abandon(self) -> None:
        """Stop the new version and delete its trial stream; ConflictError once it has taken over.

        The old version, if it has stopped at the cut already, goes on from there when it is started again.
        """
        self._client.run(self._takeover.abandon())
        self._stop()
        self._client.run(self._takeover.delete_trial())

    # --- inside -----------------------------------------------------------------------------

    def _run(self, found: Handover) -> Any:
        if self.query is not None and self.query.isActive:
            return self.query
        has_it = found.state is State.SWITCHED
        source = {"handover": self._new} if has_it else {"replay_of": self._old}
        start = {"start_stream_cut": found.cut if has_it else found.start}
        rows = (
            self._spark.readStream.format("nadi")
            .options(**self._home, stream=self._stream, **self._read, **source, **start)
            .load()
        )
        self.query = (
            self._job(rows)
            .writeStream.format("nadi")
            .options(**self._home, stream=found.output if has_it else found.trial, **self._write)
            .option("checkpointLocation", self._checkpoint)
            .start()
        )
        return self.query

    def _check(self) -> None:
        if self.query is None:
            raise ConflictError(f"the replay {self._new} is not running here: start() it")
        error = self.query.exception()
        if error is not None:
            raise error

    def _stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None


def _is_equal(compared: Comparison) -> bool:
    return compared.is_equal
