"""Builders of Kubernetes objects: pure functions to plain dicts, one module per object."""
