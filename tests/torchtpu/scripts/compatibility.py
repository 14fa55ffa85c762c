"""What user scripts do that a CPU plugin cannot, in one process, compared with the CPU."""

import io
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one.detach().cpu(), other.detach().cpu(), rtol=1e-5, atol=1e-5)


def test_there_is_one_device() -> None:
    assert torch.ones(1, device="tpu").device.index == 0
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0


def test_transfers() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    there = x.to("tpu", non_blocking=True)
    assert there.device.type == "tpu"
    close(there.to("cpu", non_blocking=True), x)
    close(there.to("cpu", torch.float64, True), x.double())
    close(torch.empty(2, 3).copy_(there, non_blocking=True), x)
    nn.Linear(3, 3).to("tpu", non_blocking=True)
    assert x.pin_memory() is x
    loader = DataLoader(TensorDataset(x), batch_size=1, pin_memory=True)
    close(torch.cat([row.to("tpu") for (row,) in loader]), x)


def test_attention() -> None:
    on_cpu = [torch.randn(2, 4, 8, 16, requires_grad=True) for _ in range(3)]
    on_tpu = [each.detach().to("tpu").requires_grad_() for each in on_cpu]
    results = [functional.scaled_dot_product_attention(*each, is_causal=True) for each in (on_cpu, on_tpu)]
    close(*results)
    for result in results:
        result.square().sum().backward()
    for one, other in zip(on_cpu, on_tpu, strict=True):
        close(one.grad, other.grad)
    query, key, value = on_cpu
    for mask in (torch.randn(8, 8), torch.rand(2, 1, 8, 8) < 0.5, torch.ones(8, 8, dtype=torch.bool).tril()):
        close(
            functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.5),
            functional.scaled_dot_product_attention(*on_tpu, attn_mask=mask.to("tpu"), scale=0.5),
        )


def test_compile() -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    x = torch.randn(3, 4)
    expected = layer(x)
    layer.to("tpu")
    close(torch.compile(layer)(x.to("tpu")), expected)
    close(torch.compile(layer, backend="tpu")(x.to("tpu")), expected)


def test_training() -> None:
    layer = nn.Linear(4, 1).to("tpu")
    optimizer = torch.optim.AdamW(layer.parameters())
    with torch.autocast("tpu", dtype=torch.bfloat16):
        loss = layer(torch.ones(2, 4, device="tpu")).sum()
    loss.backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    close(torch.load(buffer, map_location="cpu")["weight"], layer.weight)


def test_what_is_not_there_says_so() -> None:
    try:
        torch.tpu.get_device_properties(0)
    except NotImplementedError as error:
        assert "emulation" in str(error), error
    else:
        raise AssertionError


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
print("all is as on the CPU")
