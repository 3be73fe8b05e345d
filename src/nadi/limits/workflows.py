"""Limits of the controller's workflows; imported from `nadi.limits`, as all others."""

from __future__ import annotations

WORKFLOW_WAIT_S = 120.0  # a reply waits this long for its workflow, which goes on after it
WORKFLOW_RETRY_MAX_S = 10.0  # longest pause between two tries of a workflow while the store is away
SEGMENT_CALL_ATTEMPTS = 4
SEGMENT_CALLS_AT_ONCE = 128  # of a controller at one store: they share frames of logs; more would keep the loop long
CONVOY_FEW = 8  # workflows of a kind that go as they come; more set out together, to share frames of the logs,
CONVOY_WAIT_S = 0.3  # and wait no longer than this for those before them: a container may be between two servers
