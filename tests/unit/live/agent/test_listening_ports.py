"""Which address reaches a port of a task, and none of another process."""

import os
import socket

import pytest

from gpuyard.live.agent import listening_ports


@pytest.mark.skipif(not listening_ports._has_ipv6_loopback(), reason="needs IPv6 on loopback")
@pytest.mark.parametrize("only_v6", [False, True])
def test_a_port_for_ipv6_does_not_lead_to_another_process_with_the_same_port(only_v6: bool) -> None:
    with socket.socket(socket.AF_INET6) as of_task, socket.socket() as of_another:
        of_task.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
        of_task.bind(("::", 0))
        port = of_task.getsockname()[1]
        of_task.listen()
        if only_v6:
            of_another.bind(("127.0.0.1", port))
            of_another.listen()
        inode = os.fstat(of_task.fileno()).st_ino
        found, address = listening_ports._listening()[inode]
        assert found == port
        with socket.create_connection((address, port), 5):
            of_task.settimeout(5)
            of_task.accept()[0].close()
