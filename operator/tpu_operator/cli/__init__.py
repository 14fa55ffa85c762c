"""`kubectl tpu`: what people ask of TPU workloads, from the command line.

`gather` and `follow` read the cluster through `server`; all else are pure functions, from objects to what a
command shows, and from that to text. Nothing of the operator imports this package.
"""
