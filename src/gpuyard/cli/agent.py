"""`gpuyard agent`: the process that runs on every machine with GPUs."""

import os
from typing import TYPE_CHECKING

from gpuyard.cli.input.options import AcceptClusterOption, CheckConfigOption, ConfigOption, SettingsJsonOption

if TYPE_CHECKING:
    from pathlib import Path

    from gpuyard.live.agent.settings import AgentSettings


def agent(
    config: ConfigOption = None,
    check_config: CheckConfigOption = False,
    as_json: SettingsJsonOption = False,
    accept_cluster: AcceptClusterOption = "",
) -> None:
    """Run an agent: it adds the GPUs of this machine to a cluster and runs tasks on them."""
    settings = read_settings(config)
    if check_config:
        from gpuyard.cli.service.settings_check import show

        show(settings, config, as_json=as_json)
        return
    run_agent(settings, config, accept_cluster)


def read_settings(config: "Path | None") -> "AgentSettings":
    """Read the settings of an agent; environment variables for a scheduler on the same machine are ignored."""
    from gpuyard.live.agent.settings import AgentSettings, load_agent_settings
    from gpuyard.live.control_plane.settings import ServerSettings
    from gpuyard.live.wire.config import variables

    of_servers = variables(ServerSettings) - variables(AgentSettings)
    return load_agent_settings(config, os.environ, not_ours=of_servers)


def run_agent(settings: "AgentSettings", config: "Path | None" = None, accept_cluster: str = "") -> None:
    """Run the agent until it is stopped."""
    from gpuyard.cli.service.event_loop import protect_settings, run_in_loop, silence_grpc
    from gpuyard.cli.service.log_output import set_up

    silence_grpc()
    set_up(settings.log_level, settings.logging.format, settings.logging.output)
    if settings.agent.join_token:
        protect_settings(config)
    from gpuyard.live.agent.main import run

    run_in_loop(lambda: run(settings, accept_cluster=accept_cluster))
