"""What can go wrong. Each fault is a function of the world that draws its details from the seed."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.replication.node import NodeProcess
    from tests.simulation.replication.process import Process
    from tests.simulation.replication.world import World

Fault = Callable[["World"], None]


def _seconds(world: "World") -> float:
    return world.rng.choice([0.3, 1.2, 2.0, 2.8, 5.0])


def _node(world: "World") -> "NodeProcess":
    return world.rng.choice(list(world.nodes.values()))


def _anyone(world: "World") -> "Process":
    leader = world.leader()
    return world.rng.choice([leader, world.schedulers[leader.peer], _node(world)])


def leader_crashes(world: "World") -> None:
    world.crash(world.leader(), world.rng.choice([0.05, _seconds(world)]))


def standby_crashes(world: "World") -> None:
    world.crash(world.schedulers[world.leader().peer], world.rng.choice([0.05, _seconds(world)]))


def both_schedulers_crash(world: "World") -> None:
    for scheduler in world.schedulers.values():
        world.crash(scheduler, world.rng.uniform(0.05, 2.0))


def nodes_crash(world: "World") -> None:
    for node in list(world.nodes.values()):
        if world.rng.random() < 0.7:
            world.crash(node, world.rng.choice([0.02, 0.1, 1.0]))


def process_pauses(world: "World") -> None:
    _anyone(world).pause(_seconds(world))


def machine_freezes(world: "World") -> None:
    if not world.clocks_hold:
        world.leader().pause(_seconds(world), freeze=True)


def monotonic_clock_jumps_ahead(world: "World") -> None:
    if not world.clocks_hold:
        _anyone(world).offset += world.rng.choice([0.5, 2.0, 300.0])


def wall_clock_jumps(world: "World") -> None:
    _anyone(world).wall_jump += world.rng.choice([-300.0, -2.0, 2.0, 300.0])


def schedulers_are_cut(world: "World") -> None:
    ways = world.rng.choice([[("A", "B")], [("B", "A")], [("A", "B"), ("B", "A")]])
    world.block(ways, _seconds(world))


def leader_loses_voters(world: "World") -> None:
    rng, leader = world.rng, world.leader()
    lost = [it.host for it in world.nodes.values() if rng.random() < 0.7] + [leader.peer] * rng.choice([0, 1])
    back = [(host, leader.host) for host in lost] * rng.choice([0, 1])
    world.block([(leader.host, host) for host in lost] + back, _seconds(world))


def node_loses_schedulers(world: "World") -> None:
    rng, node, leader = world.rng, _node(world), world.leader()
    hosts = rng.choice([[leader.host], [leader.peer], ["A", "B"]])
    back = [(node.host, host) for host in hosts] * rng.choice([0, 1])
    world.block([(host, node.host) for host in hosts] + back, _seconds(world))


def network_splits(world: "World") -> None:
    hosts = sorted({it.host for it in world.processes})
    side = {host for host in hosts if world.rng.random() < 0.5}
    world.block([(x, y) for x in hosts for y in hosts if (x in side) != (y in side)], _seconds(world))


def links_slow_down(world: "World") -> None:
    rng, leader = world.rng, world.leader()
    for host in sorted({it.host for it in world.nodes.values()}):
        if rng.random() < 0.7:
            way = rng.choice([(host, leader.host), (leader.host, host)])
            world.lag[way] = rng.uniform(0.1, 0.9)
            world.at(world.now + _seconds(world), None, 0, partial(world.lag.pop, way, None))


def disk_slows_down(world: "World") -> None:
    _anyone(world).sync_seconds = world.rng.choice([0.05, 0.3, 0.8])


def node_loses_its_memory(world: "World") -> None:
    world.crash(_node(world), world.rng.choice([0.01, 0.1, 1.0]), forget=True)


def node_joins(world: "World") -> None:
    for _ in range(world.rng.choice([1, 1, 3])):
        world.next_node += 1
        name = f"n{world.next_node}"
        world.registered.add(world.add_node(name, name, runs_tasks=True).address)


def node_is_removed(world: "World") -> None:
    node = _node(world)
    if node.runs_tasks and len(world.registered) > 3:
        world.registered.discard(node.address)


def node_vanishes(world: "World") -> None:
    node = _node(world)
    if node.runs_tasks and sum(it.alive for it in world.nodes.values()) > 4:
        if node.alive:
            node.crash()
        node.gone = True
        world.registered.discard(node.address)
        while len(world.registered) < 3:
            node_joins(world)


def leader_hands_over(world: "World") -> None:
    leader = world.leader()
    if leader.alive and world.now >= leader.paused_until:
        leader.perform([*leader.replica.hand_over(leader.clock())])


def operator_allows_single_writing(world: "World") -> None:
    leader = world.leader()
    if leader.alive and not leader.replica.why_not_single() and world.now >= leader.paused_until:
        world.checks.single_allowed = True
        leader.perform([*leader.replica.allow_single(leader.clock())])


def leader_resigns(world: "World") -> None:
    """Perhaps while the standby already looks for another leader."""
    leader, wait = world.leader(), world.rng.choice([0.0, 1.5, 2.2])
    world.block([(leader.host, leader.peer)], wait)

    def resign() -> None:
        if leader.alive and world.now >= leader.paused_until:
            leader.perform([*leader.replica.resign(leader.clock())])

    world.at(world.now + wait, None, 0, resign)


def scheduler_loses_its_disk(world: "World") -> None:
    """It comes back empty, and copies the disk of the other one. No entry is lost with it: the other one has them all.

    If voters are chosen, the voter on that host has lost its memory, too.
    """
    victim = world.rng.choice(list(world.schedulers.values()))
    if not victim.waiting and world.is_spare(victim):
        world.crash(victim, world.rng.choice([0.05, _seconds(world)]), forget=world.choose)
        victim.lose_disk()


def lost_disk_is_found(world: "World") -> None:
    """The replica of an earlier name returns, perhaps in the place of the one that has replaced it."""
    victim = world.rng.choice(list(world.schedulers.values()))
    if victim.lost and (victim.waiting or world.is_spare(victim)):
        world.crash(victim, world.rng.choice([0.05, 1.0]))
        victim.find_disk()


def disk_is_replaced_while_the_other_is_cut_off(world: "World") -> None:
    """The leader meets a new standby, loses its voters, and the old standby returns to them."""
    leader = world.leader()
    standby = world.schedulers[leader.peer]
    if not standby.waiting and world.is_spare(standby):
        world.crash(standby, 0.05)
        standby.lose_disk()
        rng = world.rng
        hosts = sorted({it.host for it in world.nodes.values()} - set(world.schedulers))

        def cut_and_find() -> None:
            ways = [(leader.host, host) for host in hosts if rng.random() < 0.8]
            world.block([*ways, (leader.host, standby.host), (standby.host, leader.host)], 4.0)
            if not world.healed and standby.lost and (standby.waiting or world.is_spare(standby)):
                world.crash(standby, 0.05)
                standby.find_disk()

        world.at(world.now + rng.uniform(0.3, 2.0), None, 0, cut_and_find)


def voters_restart_apart_from_the_leader(world: "World") -> None:
    """The standby hears nothing from the leader; then the voters restart and hear nothing from it, either."""
    leader = world.leader()
    world.block([(leader.host, leader.peer)], 4.0)

    def restart() -> None:
        if world.healed:
            return
        hosts = {it.host for it in world.nodes.values()} - {leader.host}
        world.block([(leader.host, host) for host in sorted(hosts)], 1.0)
        for node in list(world.nodes.values()):
            if node.host not in world.schedulers:
                world.crash(node, 0.02)

    world.at(world.now + world.rng.uniform(1.2, 3.0), None, 0, restart)


def voters_are_exchanged(world: "World") -> None:
    """Some voters are cut off with the standby and replaced by new ones; then others are cut off from the leader."""
    rng, leader = world.rng, world.leader()
    away = rng.sample(sorted(world.registered), min(len(world.registered), rng.choice([1, 2])))
    later = rng.sample(sorted(world.registered), min(len(world.registered), rng.choice([1, 2])))
    hosts = {world.nodes[address].host for address in away} | {leader.peer}
    world.block([way for host in sorted(hosts) for way in ((host, leader.host), (leader.host, host))], 6.0)
    node_joins(world)
    node_joins(world)
    world.registered -= {address for address in away if world.nodes[address].runs_tasks}
    hosts_later = sorted({world.nodes[address].host for address in later} - {leader.host})

    def cut_more() -> None:
        world.block([way for host in hosts_later for way in ((host, leader.host), (leader.host, host))], 4.0)

    world.at(world.now + rng.uniform(0.3, 2.0), None, 0, cut_more)


def old_backup_is_restored(world: "World") -> None:
    """Not among `FAULTS`: synced entries are gone. No promise covers it."""
    victim = world.rng.choice(list(world.schedulers.values()))
    world.crash(victim, world.rng.choice([0.05, 1.0]))
    del victim.disk.log[max(victim.disk.oldest, len(victim.disk.log) * 3 // 4) :]


FAULTS: tuple[Fault, ...] = (
    leader_crashes,
    leader_crashes,
    standby_crashes,
    standby_crashes,
    both_schedulers_crash,
    nodes_crash,
    process_pauses,
    process_pauses,
    machine_freezes,
    monotonic_clock_jumps_ahead,
    wall_clock_jumps,
    schedulers_are_cut,
    schedulers_are_cut,
    leader_loses_voters,
    leader_loses_voters,
    node_loses_schedulers,
    network_splits,
    links_slow_down,
    disk_slows_down,
    node_loses_its_memory,
    node_joins,
    node_is_removed,
    node_vanishes,
    leader_hands_over,
    operator_allows_single_writing,
    operator_allows_single_writing,
    leader_resigns,
    scheduler_loses_its_disk,
    scheduler_loses_its_disk,
    lost_disk_is_found,
    disk_is_replaced_while_the_other_is_cut_off,
    voters_restart_apart_from_the_leader,
    voters_are_exchanged,
)
