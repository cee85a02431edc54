"""Write the generated pages and drawings of the manual, and the table of commands: python -m tools.manual --out docs/manual."""

import argparse
from pathlib import Path

from tools.manual.command_table import PLACE, command_table
from tools.manual.pages import pages


def main() -> None:
    """Write every generated file into the folder and print its path."""
    parser = argparse.ArgumentParser(prog="python -m tools.manual", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pages; it is created if missing")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    table = Path(__file__).parents[2] / PLACE
    table.write_text(command_table(), encoding="utf-8")
    print(table)
    for name, text in pages().items():
        (out / name).write_text(text, encoding="utf-8")
        print(out / name)


if __name__ == "__main__":
    main()
