"""What a standby says of itself."""

import time

from gpuyard.live.control_plane.role import SchedulerRole


def test_a_standby_is_further_behind_the_longer_it_folds_nothing() -> None:
    role = SchedulerRole(leads=False, level_at=time.monotonic() - 5.0)
    before = role.behind_seconds
    assert before >= 5.0
    assert role.behind_seconds > before
    role.level_at = time.monotonic()
    assert role.behind_seconds < 5.0
