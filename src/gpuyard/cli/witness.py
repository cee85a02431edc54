"""`gpuyard witness`: a process that only votes on which of two schedulers leads."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

DEFAULT_PORT = 9092

SchedulersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scheduler",
        metavar="HOST[:PORT]",
        help=f"Address of each scheduler for voters; repeatable, or separated by commas (default port: {DEFAULT_PORT}).",
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder for what the witness has promised; do not copy it (default: ~/.local/share/gpuyard-witness).",
    ),
]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name shown in `gpuyard status` (default: the host name).")
]
JoinTokenOption = Annotated[
    str,
    typer.Option(
        "--join-token",
        metavar="TOKEN",
        help="Join token of the cluster (default: GPUYARD_JOIN_TOKEN). Other users see it in the list of processes.",
    ),
]
JoinTokenFileOption = Annotated[
    Path | None,
    typer.Option("--join-token-file", metavar="FILE", help="File that contains the join token."),
]
AuthorityOption = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Authority of the schedulers' certificates (default: no TLS, as on a closed network).",
    ),
]
CertificateOption = Annotated[
    str, typer.Option("--tls-cert", metavar="FILE", help="Own certificate, if the schedulers require one.")
]
KeyOption = Annotated[str, typer.Option("--tls-key", metavar="FILE", help="Key of the own certificate.")]


def witness(
    scheduler: SchedulersOption = None,
    data_dir: FolderOption = None,
    name: NameOption = "",
    join_token: JoinTokenOption = "",
    join_token_file: JoinTokenFileOption = None,
    tls_ca: AuthorityOption = "",
    tls_cert: CertificateOption = "",
    tls_key: KeyOption = "",
) -> None:
    """Run a witness: a small process that votes on which of two schedulers leads, and does nothing else.

    Two schedulers that replicate their journal need three voters. Each scheduler is one, and so are the agents of the
    nodes. Run a witness on a third machine if there are no agents, or few. It needs no open port and a few kB of disk.
    """
    import socket

    addresses = _addresses(scheduler or [])
    token = _token(join_token, join_token_file)
    tls = _context(tls_ca, tls_cert, tls_key)
    folder = (data_dir or _default_folder()).absolute()

    from gpuyard.cli.service.event_loop import run_in_loop
    from gpuyard.cli.service.log_output import set_up
    from gpuyard.live.voting.witness import WitnessOptions, run

    set_up("info", "json", "stdout")
    options = WitnessOptions(folder, name or socket.gethostname(), addresses, token, tls)
    run_in_loop(lambda: run(options))


def _addresses(said: "Sequence[str]") -> tuple[str, ...]:
    from gpuyard.live.wire.frames import host_and_port

    found = [part.strip() for each in said for part in each.split(",") if part.strip()]
    if not found:
        raise WrongInput("Give the address of each scheduler: --scheduler HOST, once for each.")
    addresses = [each if ":" in each.rpartition("]")[2] else f"{each}:{DEFAULT_PORT}" for each in found]
    for address in addresses:
        try:
            host_and_port(address)
        except ValueError:
            message = (
                f"--scheduler {address} is not an address; use HOST or HOST:PORT, with an IPv6 address in brackets."
            )
            raise WrongInput(message) from None
    return tuple(addresses)


def _token(given: str, file: Path | None) -> "Callable[[], str]":
    """Return what tells the join token; a file is read at every connection, so that a new token needs no restart."""
    if given and file is not None:
        raise WrongInput("--join-token and --join-token-file exclude each other; remove one.")
    if file is not None:
        path = file.absolute()
        if not _read(path):
            raise WrongInput(f"{path} is empty. It must contain the join token of the cluster.")
        return lambda: _read(path)
    token = given or os.environ.get("GPUYARD_JOIN_TOKEN", "")
    if not token:
        raise WrongInput(
            "A witness needs the join token of the cluster. Set GPUYARD_JOIN_TOKEN, or give --join-token-file with the file "
            "of that name in the data folder of a scheduler."
        )
    return lambda: token


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _context(ca: str, cert: str, key: str) -> "ssl.SSLContext | None":
    from gpuyard.live.wire.certificates import wrong_authority, wrong_pair

    if bool(cert) != bool(key):
        raise WrongInput("--tls-cert and --tls-key need each other; give the missing one.")
    if cert and not ca:
        raise WrongInput("--tls-cert also needs --tls-ca, the authority to trust.")
    for _, sentence in (*wrong_authority("--tls-ca", ca), *wrong_pair("--tls-cert", cert, "--tls-key", key)):
        raise WrongInput(sentence)
    if not ca:
        return None
    import ssl

    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(cert, key)
    return context


def _default_folder() -> Path:
    shared = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(shared) / "gpuyard-witness"
