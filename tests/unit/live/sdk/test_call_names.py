"""Calls of functions are named so that a person recognizes them, and without what others must not see."""

from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.kind_name import kind_name
from gpuyard.live.sdk.calls import group_of, new_run
from gpuyard.live.sdk.functions import PackedFunction


def train(lr: float, steps: int = 100, *rest: object, api_key: str = "", **more: object) -> None:
    """Is never called."""


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((), {}, "train"),
        ((0.1,), {}, "train[lr=0.1]"),
        ((0.1, 5), {}, "train[lr=0.1,steps=5]"),
        ((0.1,), {"model": "resnet50", "out": Path("/data/x")}, "train[lr=0.1,model=resnet50,out=/data/x]"),
        ((None,), {"steps": True}, "train[lr=None,steps=True]"),
        ((0.1,), {"api_key": "hf_123", "wandb_token": "x"}, "train[lr=0.1,api_key=***,wandb_token=***]"),
        ((0.1,), {"table": [1, 2], "what": {"password": 1}}, "train[lr=0.1,table=list,what=dict]"),
        (("a b,c]d\n",), {}, "train[lr=a_b_c_d_]"),
        (("x" * 50,), {}, f"train[lr={'x' * 23}…]"),
        ((1,), {"lr": 2}, "train[0=1,lr=2]"),
    ],
)
def test_a_call_is_named_after_its_function_and_short_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    assert PackedFunction(train).name_of_call((args, kwargs)) == name


def test_a_name_is_never_too_long_for_a_task() -> None:
    call = ((1,), {f"argument_{number}": "y" * 30 for number in range(40)})
    name = PackedFunction(train).name_of_call(call)
    assert len(name) <= 100
    assert name.endswith("…]")
    many_digits = PackedFunction(train).name_of_call(((10**6000,), {}))
    assert many_digits == "train[lr=int]", "Python refuses to print so many digits"


def test_calls_with_other_values_are_of_one_kind() -> None:
    packed = PackedFunction(train)
    names = [packed.name_of_call(((lr,), {"model": model})) for lr, model in ((0.1, "resnet50"), (3, "vit b 16"))]
    assert len({kind_name(name, None) for name in names}) == 1


def test_a_name_that_is_given_stays_and_each_call_has_its_own_otherwise() -> None:
    packed = PackedFunction(train)
    assert packed.fields("0" * 64, 0, ((0.1,), {}), {"name": "mine"})["name"] == "mine"
    assert packed.fields("0" * 64, 0, ((0.1,), {}), {"name": None})["name"] == "train[lr=0.1]"


def test_every_map_has_a_group_of_its_own() -> None:
    packed = PackedFunction(train)
    groups = {group_of(packed, new_run()) for _ in range(20)}
    assert len(groups) == 20
    assert all(group.startswith("train-") for group in groups)
