"""What a function does with its events: a handler in a process of its own (`process`), or an HTTP service that gets
them as CloudEvents (`target`).

Both take some events of one segment, in order, and say what came of them (`event`): they never raise because of an
event. Nothing here knows of reader groups, retries or positions' records, and what the handler's process imports
(`event`, `loading`, `process`) knows nothing of the client, so that a process starts in a tenth of a second.
"""
