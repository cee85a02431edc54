"""`gpuyard simulate` with an elastic pool, sleep, a price and failures."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_cli_simulate import simulated

JOBS = "submit_s,duration_s,gpu_num\n0,7200,8\n0,100,8\n9000,100,16\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def test_every_policy_is_compared_with_the_fixed_cluster(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--elastic", "1:2", "--suspend-idle", "600", "--price", "2", "--json")
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "2x8", "--policy", "fifo,default", *words) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert list(found) == ["fifo", "fifo+elastic", "fifo+suspend", "default", "default+elastic", "default+suspend"]
    fixed, pool, sleep = (found[name] for name in ("fifo", "fifo+elastic", "fifo+suspend"))
    assert fixed["cost"] == pytest.approx(16 * 9100 / 3600 * 2, abs=1e-3)
    assert pool["cost"] < fixed["cost"] < sleep["cost"]
    assert max(pool["energy_kwh"], sleep["energy_kwh"]) < fixed["energy_kwh"]
    assert fixed["avg_queue_s"] < sleep["avg_queue_s"] < pool["avg_queue_s"]


def test_a_price_alone_shows_the_cost_of_the_fixed_cluster(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "2x8", "--policy", "fifo", "--price", "2") == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-5:] == ["FRAGMENTED", "KWH", "GPU-HOURS", "UP", "COST"]
    assert row.split()[-4:] == ["0%", "12", "40", "81"]


def test_the_same_seed_gives_the_same_failures(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(seed: int) -> dict[str, float]:
        words = ("--failures", "2:0.5", "--seed", seed, "--json")
        assert simulated(monkeypatch, "--trace", trace, "--cluster", "2x8", "--policy", "fifo", *words) == 0
        figures: dict[str, float] = json.loads(capsys.readouterr().out)["policies"]["fifo"]
        return {name: value for name, value in figures.items() if name != "wall_s"}

    assert failing(7) == failing(7) != failing(8)
    assert {"node_failures", "attempts_lost", "gpu_hours_lost"} <= failing(7).keys()


@pytest.mark.slow
def test_the_page_shows_nodes_power_and_cost_over_time(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = trace.with_name("page.html")
    words = ("--elastic", "0:2", "--price", "2", "--report", page)
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "2x8", "--policy", "fifo", *words) == 0
    assert {"page-nodes.png", "page-power.png", "page-cost.png"} < {path.name for path in page.parent.glob("*.png")}
    text = page.read_text()
    assert text.count("data:image/png;base64,") == len(list(page.parent.glob("*.png")))
    assert "<th>energy (kWh)</th><th>GPU-hours up</th><th>cost</th>" in text
    assert "attempts lost" not in text
    assert "Written: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--elastic", "3"), "--elastic is '3'; it must be MIN:MAX[:BOOT_SECONDS[:FAILING]]"),
        (("--elastic", "2:1"), "--elastic is '2:1'; it must be"),
        (("--elastic", "0:2:colour=red"), "--elastic: 'colour' is unknown; a pool has gpus, model, price, spot and"),
        (("--elastic", "0:2:gpu=4"), "--elastic: 'gpu' is unknown; did you mean gpus?"),
        (("--elastic", "0:price=1:2"), "--elastic is '0:price=1:2'; it must be"),
        (("--elastic", "0:2:price=low"), "--elastic: price is 'low'; it must be a number, 0 or more."),
        (("--elastic", "0:2:price=-1"), "--elastic: price is '-1'; it must be a number, 0 or more."),
        (("--elastic", "0:2:gpus=0"), "--elastic: gpus is 0; it must be the GPUs of a node, 1 to 64."),
        (("--elastic", "0:2:gpus=1.5"), "--elastic: gpus is 1.5; it must be the GPUs of a node"),
        (("--elastic", "0:2:model="), "--elastic is '0:2:model='; it must be"),
        (("--elastic", "0:2:spot=0"), "--elastic: spot is 0; it must be the mean hours"),
        (("--elastic", "0:2:notice=60"), "--elastic: notice needs spot"),
        (("--elastic", "0:2:price=1:price=2"), "it must be MIN:MAX"),
        (("--elastic", "0:2:price=1", "--elastic", "0:2"), "--elastic: give every pool a price, or --price for"),
        (("--elastic", "0:9:gpus=4"), "--elastic: a job needs "),
        (("--elastic", "0:0"), "--elastic is '0:0'; it must be"),
        (("--elastic", "0:1.5"), "--elastic is '0:1.5'; it must be"),
        (("--elastic", "0:2:-1"), "--elastic is '0:2:-1'; it must be"),
        (("--elastic", "0:2:10:1"), "--elastic is '0:2:10:1'; it must be"),
        (("--elastic", "0:nan"), "--elastic is '0:nan'; it must be"),
        (("--elastic", "0:2:1:0:1"), "--elastic is '0:2:1:0:1'; it must be"),
        (("--elastic", "0:1"), "--elastic: a job needs 2 nodes with 8 GPUs, and a pool has at most 1."),
        (("--suspend-idle", "soon"), "--suspend-idle is 'soon'; it must be IDLE_SECONDS[:WAKE_SECONDS]"),
        (("--suspend-idle", "-1"), "--suspend-idle is '-1'; it must be"),
        (("--price", "-1"), "--price is -1.0; it must be the price of one GPU for an hour"),
        (("--price", "nan"), "'--price': nan is not a plausible number"),
        (("--failures", "1000"), "--failures is '1000'; it must be MTBF_HOURS:REPAIR_HOURS"),
        (("--failures", "0:1"), "--failures is '0:1'; it must be"),
        (("--failures", "1:inf"), "--failures is '1:inf'; it must be"),
    ],
)
def test_invalid_scenarios_are_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "2x8", "--policy", "fifo", *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_generated_jobs_can_be_simulated_on_pools_repeatedly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--generate", "50:0.3", "--cluster", "4x8", "--elastic", "1:4", "--failures", "20:1", "--repeat", "2")
    assert simulated(monkeypatch, *words, "--policy", "fifo", "--json") == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert list(found) == ["fifo", "fifo+elastic"]
    assert found["fifo+elastic"]["energy_kwh"] < found["fifo"]["energy_kwh"]
    assert "energy_kwh" in found["fifo"]["ci95"]
    assert simulated(monkeypatch, *words, "--policy", "fifo") == 0
    assert "fifo+elastic" in capsys.readouterr().out


def test_a_pool_is_of_one_kind(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = trace.with_name("nodes.csv")
    nodes.write_text("nodes,gpus_per_node\n2,8\n1,4\n")
    assert simulated(monkeypatch, "--trace", trace, "--nodes", nodes, "--policy", "fifo", "--elastic", "0:2") != 0
    assert "--elastic needs nodes of one kind, and this cluster has 2 kinds" in capsys.readouterr().err
    pool = "0:3:gpus=8:model=A100"
    assert simulated(monkeypatch, "--trace", trace, "--nodes", nodes, "--policy", "fifo", "--elastic", pool) == 0


def test_the_cheapest_of_several_pools_is_used_and_spot_nodes_are_taken_away(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cost(*words: str) -> dict[str, float]:
        asked = ("--trace", trace, "--cluster", "2x8:A100", "--policy", "fifo", "--json", *words)
        assert simulated(monkeypatch, *asked) == 0
        found: dict[str, float] = json.loads(capsys.readouterr().out)["policies"]["fifo+elastic"]
        return found

    dear, cheap = "0:4:60:price=4", "0:4:60:price=1:model=T4"
    assert cost("--elastic", dear)["cost"] == pytest.approx(4 * cost("--elastic", cheap)["cost"], abs=0.01)
    both = cost("--elastic", dear, "--elastic", cheap)
    assert both["cost"] == cost("--elastic", cheap)["cost"]
    limited = cost("--elastic", dear, "--elastic", "0:1:60:price=1:gpus=8")
    assert both["cost"] < limited["cost"] < cost("--elastic", dear)["cost"]
    assert cost("--elastic", "0:4:60", "--price", "2")["cost"] * 2 == pytest.approx(
        cost("--elastic", dear)["cost"], abs=0.01
    )
    spot = cost("--elastic", dear, "--elastic", "0:4:60:price=1:spot=1:notice=30", "--seed", "3")
    assert spot["nodes_revoked"] > 0
    assert spot["gpu_hours_lost"] > 0
    again = cost("--elastic", dear, "--elastic", "0:4:60:price=1:spot=1:notice=30", "--seed", "3")
    assert spot | {"wall_s": 0} == again | {"wall_s": 0}


def test_a_journal_brings_its_own_nodes(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, "--journal", trace.parent, "--policy", "fifo", "--failures", "10:1") != 0
    assert (
        "--elastic, --suspend-idle, --price and --failures need --trace: a journal has its own nodes."
        in capsys.readouterr().err
    )
