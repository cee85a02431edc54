"""Serving of language models: prefill, decode and memory on a GPU, from measured operations."""

from gpuyard.learn.performance.serving.model import ServingModel as ServingModel
from gpuyard.learn.performance.serving.model import load as load
from gpuyard.learn.performance.serving.prediction import ServingPrediction as ServingPrediction
from gpuyard.learn.performance.serving.prediction import predict_serving as predict_serving
