"""One device for each client of the CPU plugin, as a process on a TPU host has one.

TorchTPU has no way to say so, and the plugin makes four. So the table of functions that the plugin gives out
is changed: where a client is made, an option is added. The layout is that of PJRT's C API, whose tables only
ever grow at their end.
"""

from __future__ import annotations

import ctypes
from typing import Any

_CLIENT_CREATE = 120
"""Where PJRT_Api has PJRT_Client_Create, in bytes."""
_INT64 = 1


class _Option(ctypes.Structure):
    """PJRT_NamedValue with an integer."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("value", ctypes.c_int64),
        ("value_size", ctypes.c_size_t),
    )


class _Arguments(ctypes.Structure):
    """The beginning of PJRT_Client_Create_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("options", ctypes.POINTER(_Option)),
        ("num_options", ctypes.c_size_t),
    )


_Create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Arguments))
_kept: list[Any] = []
"""What the plugin calls, or may read, for as long as the process lives."""


def have_one_device(library: str) -> None:
    """Let a plugin make clients with one device from now on.

    Args:
        library: its path.
    """
    plugin = ctypes.CDLL(library)
    plugin.GetPjrtApi.restype = ctypes.c_void_p
    entry = ctypes.c_void_p.from_address(plugin.GetPjrtApi() + _CLIENT_CREATE)
    original = ctypes.cast(entry, _Create)

    def create(arguments: Any) -> Any:
        given = arguments.contents
        options = (_Option * (given.num_options + 1))(*given.options[: given.num_options], _one_device())
        given.options, given.num_options = ctypes.cast(options, ctypes.POINTER(_Option)), len(options)
        _kept.append(options)
        return original(arguments)

    patched = _Create(create)
    _kept.append(patched)
    entry.value = ctypes.cast(patched, ctypes.c_void_p).value


def _one_device() -> _Option:
    name = b"cpu_device_count"
    return _Option(ctypes.sizeof(_Option), None, name, len(name), _INT64, 1, 1)
