"""What the page reads with the client library: loaded when the first question about data comes.

Owns: when bytes came (`times`), events as they come (`tail`) and as they came (`playing`, segment by segment in
`lanes`), and how they go to a browser (`payloads`). Never sees: HTTP.
"""
