"""Handlers of a function: a Python handler in a separate process (`process`), or an HTTP service that gets CloudEvents
(`target`).

Both get some events of one segment in order, and return an outcome (`event`): they never raise because of an event.
Reader groups, retries and positions are handled elsewhere. The handler's process imports only `event`, `loading` and
`process`, but not the client, so that it starts in a tenth of a second.
"""
