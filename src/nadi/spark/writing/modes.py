"""What a batch write does with a stream that has events: planned beside the driver, before any task runs.

Spark itself refuses the modes `errorifexists`, its default, and `ignore` for sources in Python; so `append` is what it
is told, and the option `save_mode` says what is meant.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from nadi.client.aio import StreamManager
from nadi.client.places.moments import HEAD, TAIL
from nadi.errors import InvalidArgumentError, NotEmptyError, SegmentGoneError
from nadi.model.streamcut import StreamCut
from nadi.spark.intents import SinkRecord, application
from nadi.spark.options.write import WriteOptions


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """skips: nothing is to be written. former: what lies before this cut is dropped once all is written; that of the
    first try, if it is one of an application's writes that is tried again."""

    skips: bool = False
    former: StreamCut | None = None


def check_overwrite(options: WriteOptions, *, overwrite: bool) -> None:
    """Whoever overwrites has to say what that does."""
    if overwrite and not options.truncates:
        raise InvalidArgumentError(
            'mode("overwrite") would drop all events that the stream has: say .option("truncate", "true") too, or '
            'append with .mode("append")'
        )
    if options.truncates and not overwrite:
        raise InvalidArgumentError("the option 'truncate' has no effect without mode(\"overwrite\")")
    if overwrite and options.save_mode != "append":
        raise InvalidArgumentError(f"the option 'save_mode' is {options.save_mode!r}: it excludes mode(\"overwrite\")")


async def plan_of(manager: StreamManager, options: WriteOptions) -> BatchPlan:
    """NotEmptyError if there are events that the options don't allow for."""
    if options.application is not None:
        name, version = options.application
        last = await SinkRecord(manager, options, application(name), skips=True).last()
        if last is not None and last.batch >= version:
            former = StreamCut.from_text(last.former) if last.batch == version and last.former else None
            return BatchPlan(last.batch > version or last.done, former)
    if options.save_mode == "append" and not options.truncates:
        return BatchPlan()
    cuts = manager.cuts(options.scope, options.stream)
    tail = await cuts.named(TAIL)
    if options.truncates:
        return BatchPlan(former=tail)
    if await cuts.bytes_between(await cuts.named(HEAD), tail) == 0:
        return BatchPlan()
    if options.save_mode == "ignore":
        return BatchPlan(skips=True)
    raise NotEmptyError(
        f"{options.scope}/{options.stream} has events already, and save_mode is errorifexists: write to another, or "
        "append to it"
    )


async def drop_former(manager: StreamManager, options: WriteOptions, plan: BatchPlan) -> None:
    """Drop what the plan says, after the new events are in the stream: a failure before leaves both. What others
    have dropped since, of it or more, is gone."""
    if plan.former is None:
        return
    try:
        await manager.truncate_stream(plan.former)
    except InvalidArgumentError:  # the stream begins behind it, in some segment at least
        cuts = manager.cuts(options.scope, options.stream)
        head = await cuts.named(HEAD)
        with suppress(SegmentGoneError):
            if not (await cuts.compare(plan.former, head)).is_at_or_before:
                await manager.truncate_stream(await cuts.latest(plan.former, head))
