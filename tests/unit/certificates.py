"""Self-signed certificates, made with openssl."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


class Pair(NamedTuple):
    """A certificate and its key."""

    cert: Path
    key: Path


def certificate(folder: Path, name: str, *options: str) -> Pair:
    """A certificate for 127.0.0.1, valid for two days; `options` are openssl's, and the last one counts."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    words = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -subj /CN={name} -addext subjectAltName=IP:127.0.0.1"
    protected = () if "-passout" in options else ("-nodes",)
    command = ["openssl", *words.split(), *protected, *options, "-keyout", str(pair.key), "-out", str(pair.cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return pair


def dated_certificate(folder: Path, name: str, first: str, last: str) -> Pair:
    """A certificate for 127.0.0.1 that is valid between two instants, each written as 20200101000000Z."""
    pair, request, config = certificate(folder, name), folder / f"{name}.csr", folder / f"{name}.cnf"
    (folder / f"{name}.index").write_text("")
    config.write_text(
        f"[ca]\ndefault_ca = all\n[all]\ndatabase = {folder}/{name}.index\nrand_serial = yes\nnew_certs_dir = {folder}\n"
        "default_md = sha256\npolicy = any\nx509_extensions = names\n[any]\ncommonName = supplied\n"
        "[names]\nsubjectAltName = IP:127.0.0.1\nbasicConstraints = CA:TRUE\n"
    )
    asking = ["openssl", "req", "-new", "-key", str(pair.key), "-subj", f"/CN={name}", "-out", str(request)]
    signing = ["openssl", "ca", "-batch", "-notext", "-selfsign", "-config", str(config), "-keyfile", str(pair.key)]
    dates = ["-startdate", first, "-enddate", last, "-in", str(request), "-out", str(pair.cert)]
    for command in (asking, [*signing, *dates]):
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return pair
