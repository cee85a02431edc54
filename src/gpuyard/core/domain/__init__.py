"""The vocabulary of the engine: values, commands, facts, refusals and errors, without scheduling logic."""
