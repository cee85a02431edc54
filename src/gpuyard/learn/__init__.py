"""Predicts: run times from history, a GPU performance model, measurements, policy training, code analysis."""
