"""The reason of a cordon is kept with the node: over drains, snapshots and changed hardware, until the node is opened."""

import msgspec

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.values import NodeId
from gpuyard.core.engine import snapshot
from gpuyard.testing import ClusterStory

NODE = NodeId("node-1")


def reason(story: ClusterStory) -> str:
    return story.state.index.hosts[NODE].cordon_reason


def test_a_reason_is_kept_until_the_node_is_opened() -> None:
    story = ClusterStory()
    story.has_nodes(1, gpus_each=1)
    story.tells(command.CordonNode(NODE, reason="fan"))
    assert reason(story) == "fan"
    assert not story.tells(command.CordonNode(NODE)), "nothing changed"
    story.tells(command.CordonNode(NODE, drain=True))
    assert reason(story) == "fan"
    assert [event.reason for _, event in story.events if isinstance(event, events.NodeCordoned)] == ["fan", "fan"]
    story.tells(command.CordonNode(NODE, drain=True, reason="fan replaced on Monday"))
    assert reason(story) == "fan replaced on Monday"
    story.uncordons("node-1")
    assert reason(story) == ""
    story.tells(command.CordonNode(NODE))
    assert reason(story) == ""


def test_a_reason_is_in_the_snapshot() -> None:
    story = ClusterStory()
    story.has_nodes(1, gpus_each=1)
    story.tells(command.CordonNode(NODE, reason="fan"))
    kept = msgspec.json.decode(msgspec.json.encode(snapshot.dump(story.state)))
    assert snapshot.load(kept).index.hosts[NODE].cordon_reason == "fan"
