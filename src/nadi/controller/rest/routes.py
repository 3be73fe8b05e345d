"""Every endpoint: what is served, and what is described."""

from __future__ import annotations

from nadi.controller.rest import readergroups, scaling, scopes, streams
from nadi.controller.rest.endpoint import Endpoint
from nadi.controller.rest.own import cluster, health, ingest, migration

ENDPOINTS: tuple[Endpoint, ...] = (
    scopes.list_scopes,
    scopes.create_scope,
    scopes.show_scope,
    scopes.delete_scope,
    streams.list_streams,
    streams.create_stream,
    streams.show_stream,
    streams.show_kept,
    streams.update_stream,
    streams.delete_stream,
    streams.change_state,
    scaling.scaling_events,
    scaling.scaling_log,
    scaling.load,
    readergroups.show_stream_lag,
    readergroups.list_reader_groups,
    readergroups.show_reader_group,
    readergroups.show_lag,
    readergroups.delete_reader_group,
    *ingest.ENDPOINTS,
    *health.ENDPOINTS,
    *cluster.ENDPOINTS,
    *migration.ENDPOINTS,
)
