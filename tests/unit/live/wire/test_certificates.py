"""Unusable TLS files are refused with the setting, the file and what to provide instead."""

import asyncio
import os
from pathlib import Path

import pytest

from gpuyard.live.control_plane.server import SchedulerStartError, serve
from gpuyard.live.control_plane.settings import (
    ServerSection,
    ServerSettings,
    ServerTlsSection,
    StorageSection,
    load_server_settings,
)
from gpuyard.live.wire.certificates import wrong_authority, wrong_pair
from gpuyard.live.wire.config import WrongSettings
from tests.unit.certificates import certificate, needs_openssl

pytestmark = needs_openssl


def told(cert: object, key: object) -> str:
    return "\n".join(sentence for _, sentence in wrong_pair("tls.cert", str(cert), "tls.key", str(key)))


def test_a_certificate_with_its_own_key_is_valid(tmp_path: Path) -> None:
    one = certificate(tmp_path, "one")
    assert told(one.cert, one.key) == ""
    assert list(wrong_authority("tls.ca", str(one.cert))) == []
    assert told("", "") == ""


def test_each_invalid_file_is_named_with_its_setting(tmp_path: Path) -> None:
    one, other = certificate(tmp_path, "one"), certificate(tmp_path, "other")
    (tmp_path / "text.pem").write_text("no certificate at all\n")

    assert told(one.cert, other.key).startswith(f"tls.key ({other.key}) is not the key of the certificate in tls.cert")
    assert told(tmp_path / "nope.pem", one.key).startswith(f"tls.cert: {tmp_path}/nope.pem does not exist. Set")
    assert told(one.cert, tmp_path / "nope.key").startswith(f"tls.key: {tmp_path}/nope.key does not exist. Set")
    assert told(one.cert, tmp_path).startswith(f"tls.key: {tmp_path} is not a file. Set")
    assert told(one.key, one.key).startswith(f"tls.cert: {one.key} is not usable")
    assert told(one.cert, one.cert).startswith(f"tls.key: {one.cert} is not usable")
    assert told(tmp_path / "text.pem", one.key).startswith(f"tls.cert: {tmp_path}/text.pem is not usable")
    assert told("a\0b", one.key).startswith("tls.cert: ")


def test_a_key_with_a_passphrase_is_refused_and_never_prompted_for(tmp_path: Path) -> None:
    one = certificate(tmp_path, "one", "-passout", "pass:secret-1")
    assert told(one.cert, one.key).startswith(f"tls.key ({one.key}) has a passphrase. Use a key without one")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_reported_as_such(tmp_path: Path) -> None:
    one = certificate(tmp_path, "one")
    one.key.chmod(0)
    assert "cannot be read: Permission denied" in told(one.cert, one.key)


def test_the_settings_of_a_scheduler_name_the_line_of_an_invalid_file(tmp_path: Path) -> None:
    one, other = certificate(tmp_path, "one"), certificate(tmp_path, "other")
    file = tmp_path / "scheduler.yaml"
    file.write_text(f"server:\n  tls:\n    cert: {one.cert}\n    key: {other.key}\n    client_ca: {one.key}\n")
    with pytest.raises(WrongSettings) as wrong:
        load_server_settings(file, {})
    lines = str(wrong.value).splitlines()
    assert lines[0].startswith(f"{file}, line 4: server.tls.key ({other.key}) is not the key of the certificate")
    assert lines[1].startswith(f"{file}, line 5: server.tls.client_ca: {one.key} is not usable")


def test_a_scheduler_with_invalid_files_opens_no_port(tmp_path: Path) -> None:
    one, other = certificate(tmp_path, "one"), certificate(tmp_path, "other")
    tls = ServerTlsSection(cert=str(one.cert), key=str(other.key))
    settings = ServerSettings(server=ServerSection(tls=tls), storage=StorageSection(data_dir=str(tmp_path / "data")))
    with pytest.raises(SchedulerStartError, match=r"server\.tls\.key .* is not the key of the certificate"):
        asyncio.run(serve(settings))
    assert not (tmp_path / "data").exists()
