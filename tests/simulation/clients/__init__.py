"""Clients of simulated servers, each in its own process, which act like real ones and retry lost calls. Those in
`library` use the client library; the others send wire commands one at a time."""
