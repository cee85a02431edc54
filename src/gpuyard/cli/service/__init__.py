"""Run a process that stays: event loop, log and `--check-config` of server, agent and up."""
