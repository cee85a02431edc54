"""Common models of torchvision, with random weights."""

from collections.abc import Callable
from typing import Any

import torch
from torchvision import models

from gpuyard.learn.profiler.zoo import ProfiledModel

NAMES = {
    "alexnet": "alexnet",
    **dict.fromkeys(("vgg11", "vgg16", "vgg19_bn"), "vgg"),
    **dict.fromkeys(("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2"), "resnet"),
    **dict.fromkeys(("resnext50_32x4d", "resnext101_32x8d"), "resnext"),
    **dict.fromkeys(("densenet121", "densenet169", "densenet201"), "densenet"),
    **dict.fromkeys(("squeezenet1_0", "squeezenet1_1"), "squeezenet"),
    **dict.fromkeys(("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"), "mobilenet"),
    **dict.fromkeys(("mnasnet0_5", "mnasnet1_0", "mnasnet1_3"), "mnasnet"),
    **dict.fromkeys(("shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x2_0"), "shufflenet"),
    **dict.fromkeys(("efficientnet_b0", "efficientnet_b2", "efficientnet_b4", "efficientnet_v2_s", "efficientnet_v2_m"), "efficientnet"),
    **dict.fromkeys(("regnet_y_400mf", "regnet_y_1_6gf", "regnet_y_8gf", "regnet_x_3_2gf"), "regnet"),
    **dict.fromkeys(("convnext_tiny", "convnext_small", "convnext_base"), "convnext"),
    **dict.fromkeys(("vit_b_16", "vit_b_32", "vit_l_16"), "tv-vit"),
    **dict.fromkeys(("swin_t", "swin_s", "swin_b", "swin_v2_t"), "swin"),
    "maxvit_t": "maxvit",
}  # fmt: skip
"""Each model with its family."""


def profiled_models() -> list[ProfiledModel]:
    """Return all vision models, at 224 pixels."""
    return [
        ProfiledModel(f"torchvision/{name}", family, "image", 224, _builder(name), _image, (1, 8, 32, 128))
        for name, family in NAMES.items()
    ]


def _builder(name: str) -> Callable[[], Any]:
    return lambda: models.get_model(name, weights=None)


def _image(batch: int) -> tuple[Any, ...]:
    return (torch.randn(batch, 3, 224, 224),)
