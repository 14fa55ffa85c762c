"""What tests of engines ask an engine's pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.roles import IMAGES, inference, role, shape_of
from tpu_operator.core.inference.engines import EnginePod, Seat, for_role

if TYPE_CHECKING:
    from tpu_operator.api import TPUInference

LEADER = "qwen-decode-0.qwen"


def pod(of: TPUInference | None = None, name: str = "", host: int = 0) -> EnginePod:
    """The pod of one host of a role; of the first role by default."""
    of = of or inference()
    spec = next((each for each in of.spec.roles if each.name == name), of.spec.roles[0])
    return for_role(of, spec, Seat(shape_of(spec), host, LEADER), IMAGES)


def pair(**spec: Any) -> TPUInference:
    """Prefill and decode, one host each."""
    return inference(role("prefill"), role("decode"), **spec)


def value(engine: EnginePod, flag: str) -> str | None:
    """What follows a flag of the command; None if it is not there, empty if nothing follows."""
    command = engine.command
    if flag not in command:
        return None
    return next(iter(command[command.index(flag) + 1 :]), "")


def env(engine: EnginePod) -> dict[str, str | None]:
    """Variables with a value of their own, by name."""
    return {variable["name"]: variable.get("value") for variable in engine.env}


def hidden(engine: EnginePod) -> dict[str, str]:
    """Variables that the command changes before the engine starts."""
    if engine.command[0] != "env":
        return {}
    end = engine.command.index("vllm")
    pairs = (part.partition("=") for part in engine.command[1:end])
    return {name: value for name, _, value in pairs}
