"""The live page, and what it asks for beside the controller's REST interface.

Owns: the page's files and the headers they go out with (`site`); the rates of all streams, segments, transactions and
scaling (`now`); and what is asked about data: cuts, bookmarks, slices, groups, truncation (`places`), events as they
come and as they came (`events`), search (`searching`). Never sees: files of the server, logs, containers.

Questions about data go through this server's own clients (`own_clients`), with the credentials of the caller. The
client library is loaded when the first such question comes, by `reading`.
"""
