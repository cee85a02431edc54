"""The task graph as a Mermaid diagram."""

from pathlib import Path

from gpuyard.learn.analysis.mermaid import mermaid
from tests.unit.learn.analysis.scripts import script


def test_every_task_is_a_box_and_the_critical_path_is_bold(tmp_path: Path) -> None:
    source = """
    import numpy as np
    def load(): return np.load("a.npy")
    def clean(x): return x + 1
    def look(x): return len(x)
    a = load()
    look(a)
    b = clean(a)
    look(b)
    """
    lines = mermaid(script(tmp_path, source).graph).splitlines()
    assert lines == [
        "flowchart LR",
        '    t0["load<br/>data, io"]:::data',
        '    t1["look<br/>other"]:::other',
        '    t2["clean<br/>other"]:::other',
        '    t3["look-2<br/>other"]:::other',
        "    t0 --> t1",
        "    t0 ==> t2",
        "    t2 ==> t3",
        "    classDef data fill:#c5e0b4,stroke:#444,color:#111",
        "    classDef other fill:#e4e4e4,stroke:#444,color:#111",
    ]
