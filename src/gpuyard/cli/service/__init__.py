"""Run a long-lived process: event loop, log and `--check-config` of server, agent and up."""
