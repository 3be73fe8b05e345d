"""The live page, and what it asks for beside the controller's REST interface.

Owns: the page's files and the headers they go out with (`page`); the rates of all streams, segments, transactions and
scaling (`now`); and what is asked about data: cuts, bookmarks, slices, groups, truncation (`places`), events as they
come and as they came (`events`). Never sees: files of the server, logs, containers.

Questions about data go through the client library to this server's own doors (`clients`), with the credentials of
whoever asks: so permissions are checked where those of every client are, segments are found wherever they are, and it
is the same at any server of a cluster. The client is loaded when the first such question comes, by `reading`.
"""
