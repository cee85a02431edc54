"""How idle the GPUs of a cluster are, for the weights of plans with several objectives (`planner.front`)."""

from dataclasses import dataclass

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk import Client, ClusterError


@dataclass(frozen=True, slots=True)
class ClusterIdle:
    """The GPUs of a cluster at one instant. GPUs of nodes that are offline are not counted."""

    server: str
    idle: int
    online: int

    @property
    def rate(self) -> float:
        """The fraction of GPUs that no task and no process outside the cluster uses."""
        return self.idle / self.online

    def __str__(self) -> str:
        return f"{self.idle:,} of {self.online:,} GPUs of {self.server} are idle"


def idle_gpus(cluster: Client) -> ClusterIdle:
    """Ask the scheduler. Raise `WrongInput` if it does not answer or has no GPU online."""
    server = cluster.connection.server
    try:
        said = cluster.gpus()
    except ClusterError as error:
        raise WrongInput(f"The idle rate of {server} is unknown: {error}") from None
    online = said.total - said.offline
    if not online:
        raise WrongInput(f"The idle rate of {server} is unknown: no GPU is online.")
    return ClusterIdle(server, said.idle, online)
