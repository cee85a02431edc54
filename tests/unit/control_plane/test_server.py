"""How a scheduler is put together."""

from pathlib import Path

from gpuyard.control_plane.server import JOIN_TOKEN_FILE, join_token
from gpuyard.control_plane.settings import ServerSettings, Storage


def test_a_join_token_is_drawn_once_for_its_owner_alone_also_after_a_kill_while_it_was_written(tmp_path: Path) -> None:
    settings = ServerSettings(storage=Storage(data_dir=str(tmp_path)))
    path = tmp_path / JOIN_TOKEN_FILE
    path.touch()
    drawn = join_token(settings)
    assert len(drawn) > 20
    assert drawn == join_token(settings) == path.read_text().strip()
    assert path.stat().st_mode & 0o077 == 0
