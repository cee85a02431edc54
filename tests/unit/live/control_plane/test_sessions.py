"""Messages to one agent."""

import asyncio

from gpuyard.live.agent.link import CHANNEL_OPTIONS
from gpuyard.live.control_plane.nodes.sessions import MOST_IN_A_MESSAGE, AgentSession
from gpuyard.live.wire import agents_pb2 as pb


def test_the_longest_allowed_launches_fit_into_messages_that_an_agent_accepts() -> None:
    longest = dict(CHANNEL_OPTIONS)["grpc.max_receive_message_length"]
    launch = pb.Launch(shell="true", env={"LONG": "x" * 1024 * 1024})

    async def story() -> list[int]:
        session = AgentSession(pb.Registration(node=pb.Node(id="node-1")), {})
        session.send(pb.Command(task=task, attempt=1, launch=launch) for task in range(1, 101))
        sizes, heard = [], 0
        async for message in session.messages(1, lambda: (0, "")):
            sizes.append(message.ByteSize())
            heard += len(message.commands)
            if heard == 100:
                break
        return sizes

    assert max(asyncio.run(story())) < longest


def test_nothing_is_sent_to_a_session_that_is_over() -> None:
    async def story() -> list[pb.SchedulerMessage]:
        session = AgentSession(pb.Registration(node=pb.Node(id="node-1")), {})
        session.send([pb.Command(task=1, attempt=1, launch=pb.Launch(shell="true"))])
        session.close()
        session.send([pb.Command(task=2, attempt=1, launch=pb.Launch(shell="true"))])
        return [message async for message in session.messages(1, lambda: (0, ""))]

    assert asyncio.run(story()) == []


def test_a_session_that_ends_while_its_agent_reads_slowly_sends_no_more_of_its_commands() -> None:
    async def story() -> int:
        session = AgentSession(pb.Registration(node=pb.Node(id="node-1")), {})
        session.send(pb.Command(task=task, attempt=1, launch=pb.Launch(shell="true")) for task in range(1, 101))
        count = 0
        async for message in session.messages(1, lambda: (0, "")):
            count += len(message.commands)
            session.close()
        return count

    assert asyncio.run(story()) == MOST_IN_A_MESSAGE
