"""The web page, and the REST endpoints that only the page uses.

Owns: the page's files and headers (`site`); current rates, segments, transactions and scaling (`live`); cuts,
bookmarks, slices, groups and truncation (`stream_cuts`); live and replayed events (`events`); search (`searching`).
Never sees: files of the server, logs, containers.

Requests for data use this server's own clients (`loopback_clients`) with the caller's credentials. The client library
is loaded on the first such request, by `reading`.
"""
