"""The launcher that runs inside TPU pods, and what programs may call that it starts."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tpu_runtime.program import heartbeat, on_preemption

__all__ = ["heartbeat", "on_preemption"]


def __getattr__(name: str) -> object:
    """What programs ask for; the launcher itself has to heed signals before it imports anything."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tpu_runtime import program  # noqa: PLC0415 - see above

    return getattr(program, name)
