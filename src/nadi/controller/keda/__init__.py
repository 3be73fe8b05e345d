"""How much work a stream has for those who take it in, for KEDA, which makes them more and fewer by it.

Owns: what a trigger's metadata may say, and the numbers that follow from it. Never sees: gRPC, KEDA, Kubernetes.
"""
