"""`gpuyard server`: run a scheduler for agents on other machines, with a settings file."""

import os

from gpuyard.cli.input.options import CheckConfigOption, ConfigOption, SettingsJsonOption, TakeOverOption


def server(
    config: ConfigOption = None,
    check_config: CheckConfigOption = False,
    as_json: SettingsJsonOption = False,
    take_over: TakeOverOption = False,
) -> None:
    """Run a scheduler. Agents on other machines join it; for one machine use `gpuyard up`."""
    from gpuyard.live.agent.settings import AgentSettings
    from gpuyard.live.control_plane.settings import ServerSettings, effective, load_server_settings
    from gpuyard.live.wire.config import variables

    of_agents = variables(AgentSettings) - variables(ServerSettings)
    settings = load_server_settings(config, os.environ, not_ours=of_agents)
    if check_config:
        from gpuyard.cli.service.settings_check import show

        show(effective(settings), config, as_json=as_json)
        return
    from gpuyard.cli.service.event_loop import protect_settings, run_in_loop, silence_grpc
    from gpuyard.cli.service.log_output import set_up

    silence_grpc()
    set_up(settings.log_level, settings.logging.format, settings.log_output)
    if settings.join_token or settings.users:
        protect_settings(config)
    from gpuyard.live.control_plane.server import note_ignored_settings, serve, stop_on_signals

    note_ignored_settings(settings)

    async def until_told() -> None:
        import asyncio

        stop = asyncio.Event()
        stop_on_signals(stop)
        await serve(settings, take_over=take_over, until=stop)

    run_in_loop(until_told)
