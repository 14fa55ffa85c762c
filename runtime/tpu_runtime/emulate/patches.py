"""What user scripts hit that a CPU plugin does not have, and what stands in for it.

All of it is about how things are done, never about what comes out: transfers that wait, memory that is not
pinned, attention by its definition, graphs that are run as they were traced.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable

import torch
from torch.nn import functional

_NO_PROPERTIES = (
    "the emulation of TPUs on the CPU has no device properties: no name, memory or cores to tell of"
)


def apply() -> None:
    """Put everything in place, once."""
    for name in ("to", "copy_"):
        setattr(torch.Tensor, name, _blocking(getattr(torch.Tensor, name)))
    torch.Tensor.pin_memory = _as_it_is
    functional.scaled_dot_product_attention = _attention(functional.scaled_dot_product_attention)
    _compile_eagerly()
    torch.tpu.get_device_properties = _no_properties


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose non_blocking is ignored: the plugin has no allocator for what such transfers need."""

    @wraps(method)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("non_blocking", None)
        flag = next((i for i, value in enumerate(args) if isinstance(value, bool)), None)
        if flag is not None:
            args = (*args[:flag], False, *args[flag + 1 :])
        return method(self, *args, **kwargs)

    return patched


def _as_it_is(tensor: Any, *_args: Any, **_kwargs: Any) -> Any:
    return tensor


def _attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention that is a kernel of its own on a TPU."""

    @wraps(original)
    def patched(  # noqa: PLR0913, PLR0917 - torch's signature
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        if query.device.type != "tpu":
            return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            # The definition adds the mask, and would take true and false for one and zero.
            seen = attn_mask
            attn_mask = torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, float("-inf"))
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        return torch.ops.aten._scaled_dot_product_attention_math(*arguments, **options)[0]

    return patched


def _compile_eagerly() -> None:
    """torch.compile's backend for TPUs runs what dynamo has traced, operation by operation."""
    from torch._dynamo.backends import registry

    real = registry.lookup_backend("tpu")

    def emulated(graph: Any, _inputs: Any, **_options: Any) -> Any:
        return graph.forward

    emulated._tags = getattr(real, "_tags", ())  # type: ignore[attr-defined]
    registry._COMPILER_FNS["tpu"] = emulated  # register_backend takes each name once


def _no_properties(*_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError(_NO_PROPERTIES)
