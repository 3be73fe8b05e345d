"""Data of the page that needs the client library, which is loaded with this package on the first request for data.

Owns: arrival times of bytes (`times`), the tail (`tail`), replay (`playing`, which reads each segment with `lanes`),
and the form of events for a browser (`payloads`). Never sees: HTTP.
"""
