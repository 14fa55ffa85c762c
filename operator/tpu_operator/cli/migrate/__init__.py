"""`kubectl tpu migrate`: what torch_xla becomes with TorchTPU (docs/migrate-from-torch-xla.md).

`idioms` is the table, `source` reads files, `checker` finds idioms in them and is pure, `command` shows them.
"""
