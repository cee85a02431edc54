"""The vocabulary of the engine: values, commands, events, refusals and errors, without scheduling logic."""
