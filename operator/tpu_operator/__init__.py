"""Kubernetes operator for TPU workloads."""
