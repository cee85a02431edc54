"""Serving of language models: prefill, decode and memory on a GPU, from measured operations."""

from gpuyard.learn.performance.serving.model import ServingModel as ServingModel
from gpuyard.learn.performance.serving.model import load as load
