"""The launcher that runs inside TPU pods."""
