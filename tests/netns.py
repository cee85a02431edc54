"""A network of this machine's own whose hosts are network namespaces, and in which packets can be lost in silence.

    host "a" ── veth ──┐
    host "b" ── veth ──┼── router      every packet crosses the router, which drops those that a cut names
    "here"   ── veth ──┘

A cut drops packets from one host to another without an answer: no reset, no ICMP. Both ends keep their connections until a
time limit of their own ends them. "here" is the namespace of the tests and may be cut off like any host. The addresses are
from 198.18.0.0/15, which is reserved for measurements (RFC 2544), and no other interface of the machine is used.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

HERE = "here"
NAMESPACES = Path("/run/netns")
NETWORKS = 256
Direction = Literal["both", "out", "in"]
_CLONE_NEWNET = 0x40000000


class NoNetwork(Exception):
    """Network namespaces cannot be had here."""


class Network:
    """Hosts that reach each other through a router. `end` removes everything."""

    def __init__(self, hosts: Sequence[str]) -> None:
        if why := why_no_network():
            raise NoNetwork(why)
        self._hosts = (*hosts, HERE)
        self._cuts: list[tuple[str, str]] = []
        self._number = self._take_number()
        try:
            self._make()
        except BaseException:
            self.end()
            raise

    # --- hosts -------------------------------------------------------------------------------------------------------

    def address(self, host: str) -> str:
        """Return the address of a host."""
        return f"198.18.{self._number}.{4 * self._hosts.index(host) + 2}"

    @property
    def addresses(self) -> str:
        """All addresses of this network, as ADDRESS/LENGTH."""
        return f"198.18.{self._number}.0/24"

    def within(self, host: str) -> tuple[str, ...]:
        """Return the words before a command that run it on a host. It keeps its process id."""
        return () if host == HERE else ("nsenter", f"--net={NAMESPACES / self._name(host)}")

    @contextmanager
    def thread_within(self, host: str) -> Iterator[None]:
        """Sockets that this thread opens belong to a host; other threads stay where they are."""
        libc = ctypes.CDLL(None, use_errno=True)
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(NAMESPACES / self._name(host), os.O_RDONLY)

        def enter(namespace: int) -> None:
            if libc.setns(namespace, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

        try:
            enter(there)
            try:
                yield
            finally:
                enter(before)
        finally:
            os.close(there)
            os.close(before)

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self, one: str, others: Iterable[str], direction: Direction = "both") -> None:
        """Lose every packet between a host and others; `out`: only those from it, `in`: only those to it."""
        for other in others:
            if direction != "in":
                self._drop(one, other)
            if direction != "out":
                self._drop(other, one)

    def heal(self) -> None:
        """Lose no packet any more."""
        while self._cuts:
            self._ip_in_router("rule", "del", *self._rule(*self._cuts.pop()))

    def _drop(self, sender: str, receiver: str) -> None:
        self._ip_in_router("rule", "add", *self._rule(sender, receiver))
        self._cuts.append((sender, receiver))

    def _rule(self, sender: str, receiver: str) -> tuple[str, ...]:
        return ("from", self.address(sender), "to", self.address(receiver), "blackhole")

    # --- making ------------------------------------------------------------------------------------------------------

    def _name(self, host: str) -> str:
        return f"gpuyard{self._number}-{host}"

    def _take_number(self) -> int:
        """The router's namespace is the lock of a number."""
        for number in range(NETWORKS):
            done = subprocess.run(["ip", "netns", "add", f"gpuyard{number}-router"], capture_output=True, check=False)
            if done.returncode == 0:
                return number
        raise NoNetwork(f"There are {NETWORKS} networks of tests already; `ip netns` lists them.")

    def _make(self) -> None:
        router = NAMESPACES / self._name("router")
        for name, value in (("ip_forward", 1), ("conf/all/rp_filter", 0), ("conf/default/rp_filter", 0)):
            # Without rp_filter: it would also drop what is sent against the direction of a cut.
            path = f"/proc/sys/net/ipv4/{name}"
            _run("nsenter", f"--net={router}", "sh", "-c", f"echo {value} > {path}")
        for host in self._hosts:
            self._connect(host)

    def _connect(self, host: str) -> None:
        address, place = self.address(host), self._hosts.index(host)
        gateway = f"198.18.{self._number}.{4 * place + 1}"
        own, far = f"gy{self._number}h{place}", f"gy{self._number}r{place}"
        there: tuple[str, ...] = ()
        if host != HERE:
            _run("ip", "netns", "add", self._name(host))
            there = ("-n", self._name(host))
            _run("ip", *there, "link", "set", "lo", "up")
        _run("ip", "link", "add", own, "type", "veth", "peer", "name", far, "netns", self._name("router"))
        if there:
            _run("ip", "link", "set", own, "netns", self._name(host))
        self._ip_in_router("addr", "add", f"{gateway}/30", "dev", far)
        self._ip_in_router("link", "set", far, "up")
        _run("ip", *there, "addr", "add", f"{address}/30", "dev", own)
        _run("ip", *there, "link", "set", own, "up")
        _run("ip", *there, "route", "add", self.addresses, "via", gateway)

    def _ip_in_router(self, *words: str) -> None:
        _run("ip", "-n", self._name("router"), *words)

    def end(self) -> None:
        """Remove all namespaces of this network, and with them its connections."""
        with suppress(NoNetwork):  # the kernel removes it with the router, but later
            _run("ip", "link", "del", f"gy{self._number}h{self._hosts.index(HERE)}")
        for host in (*self._hosts, "router"):
            if (NAMESPACES / self._name(host)).exists():
                with suppress(NoNetwork):
                    _run("ip", "netns", "del", self._name(host))


@cache
def why_no_network() -> str:
    """Return why there can be no network namespaces, or nothing."""
    if os.geteuid():
        return "Network namespaces need root."
    if missing := [program for program in ("ip", "nsenter") if shutil.which(program) is None]:
        return f"Network namespaces need {' and '.join(missing)} (packages iproute2 and util-linux)."
    tried = f"gpuyard-try-{os.getpid()}"
    try:
        _run("ip", "netns", "add", tried)
        try:
            _run("ip", "-n", tried, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
            _run("ip", "-n", tried, "rule", "add", "from", "198.18.0.1", "to", "198.18.0.2", "blackhole")
        finally:
            _run("ip", "netns", "del", tried)
    except NoNetwork as failed:
        return f"This kernel or container allows no network namespaces: {failed}"
    return ""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(f"{' '.join(words)}: {done.stderr.strip()}")
