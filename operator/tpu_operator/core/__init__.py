"""Decisions. Pure: no I/O, no clock, no framework; checked by an import contract."""
