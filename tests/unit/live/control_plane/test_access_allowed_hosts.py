"""Host, Origin, and where a server may listen without a login."""

from socket import gethostname

import pytest

from gpuyard.live.control_plane.access.allowed_hosts import AllowedHosts, refuse_unsafe_address
from gpuyard.live.control_plane.settings import (
    AuthSection,
    ServerSection,
    ServerSettings,
    ServerTlsSection,
    refuse_unsafe_addresses,
)
from gpuyard.live.wire.config import Address


def verdict(plate: AllowedHosts, host: str | None, origin: str | None = None) -> str:
    denied = plate.check(host, origin)
    if denied is None:
        return "welcome"
    assert denied.sentence.endswith(".")
    return denied.code


LOOPBACK = AllowedHosts("127.0.0.1")


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LocalHost.:8080", "127.0.0.1", "127.0.0.1:9", "127.1.2.3:80", "[::1]", "[::1]:80",
     "[0:0:0:0:0:0:0:1]:80"],
)  # fmt: skip
def test_on_loopback_every_loopback_name_is_allowed(host: str) -> None:
    assert verdict(LOOPBACK, host) == "welcome"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "0.0.0.0:8080",
     "10.0.0.1", "[::]", "2130706433", "127.1", "0x7f.0.0.1", "evil-localhost"],
)  # fmt: skip
def test_on_loopback_every_other_name_is_refused(host: str) -> None:
    assert verdict(LOOPBACK, host) == "WrongHost"


@pytest.mark.parametrize(
    "host",
    [None, "", " ", ":8080", "a b", "localhost:", "localhost:http", "localhost:123456", "user@localhost", "localhost/",
     "localhost,evil.example", "[::1", "loc\x00alhost", "::1"],
)  # fmt: skip
def test_a_header_without_a_host_is_refused(host: str | None) -> None:
    assert verdict(LOOPBACK, host) == "BadHost"


def test_on_one_address_that_address_and_the_configured_names_are_allowed() -> None:
    plate = AllowedHosts("192.168.1.5", ["Yard.example", "gpu.lab"])
    for host in ("192.168.1.5:8080", "yard.example", "YARD.example:8080", "gpu.lab."):
        assert verdict(plate, host) == "welcome"
    for host in ("localhost", "127.0.0.1", "192.168.1.6", "lab", "evil.example"):
        assert verdict(plate, host) == "WrongHost"


@pytest.mark.skipif(gethostname().startswith("localhost"), reason="this machine has no name of its own")
def test_the_machines_own_name_is_allowed_only_beyond_loopback() -> None:
    for bound in ("0.0.0.0", "192.168.1.5"):
        assert verdict(AllowedHosts(bound), f"{gethostname()}:8080") == "welcome"
    assert verdict(LOOPBACK, f"{gethostname()}:8080") == "WrongHost"


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "", "*"])
def test_on_all_addresses_ip_addresses_and_configured_names_are_allowed_and_other_names_are_not(bound: str) -> None:
    plate = AllowedHosts(bound, ["yard.example"])
    for host in ("192.168.1.5:8080", "[fd00::1]:8080", "localhost", "yard.example"):
        assert verdict(plate, host) == "welcome"
    for host in ("evil.example", "0.0.0.0:8080", "[::]"):
        assert verdict(plate, host) == "WrongHost"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("LOCALHOST:8080", "http://localhost:8080"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("127.0.0.1:80", "http://127.0.0.1"),
        ("localhost", "https://localhost:443"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_our_own_page_is_allowed(host: str, origin: str) -> None:
    assert verdict(LOOPBACK, host, origin) == "welcome"


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost:3000", "http://localhost", "http://127.0.0.1:8080", "null", "",
     "http://localhost:8080@evil.example", "http://localhost:8080.evil.example", "http://localhost:99999", "http://[",
     "file://localhost:8080", "localhost:8080", "chrome-extension://abc"],
)  # fmt: skip
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    assert verdict(LOOPBACK, "localhost:8080", origin) == "WrongOrigin"


def test_a_long_origin_does_not_make_a_long_message() -> None:
    denied = LOOPBACK.check("localhost", "http://" + "x" * 10_000)
    assert denied is not None
    assert len(denied.sentence) < 250


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "127.9.9.9:1", "localhost:8080", "[::1]:8080"])
def test_loopback_needs_no_authentication(address: str) -> None:
    assert refuse_unsafe_address(address, auth_enabled=False) is None


@pytest.mark.parametrize(
    "address", ["0.0.0.0:8080", "[::]:8080", ":8080", "*:8080", "192.168.1.5:8080", "yard.example:80", "[fd00::1]:80"]
)
def test_any_other_address_needs_authentication(address: str) -> None:
    sentence = refuse_unsafe_address(address, auth_enabled=False)
    assert sentence is not None
    assert sentence.startswith(address)
    assert "Set auth.enabled: true" in sentence
    assert refuse_unsafe_address(address, auth_enabled=True) is None


@pytest.mark.parametrize("key", ["http_address", "grpc_address"])
def test_plain_text_beyond_loopback_is_refused_without_tls_or_a_setting_that_allows_it(key: str) -> None:
    def refused(**server: object) -> str | None:
        return refuse_unsafe_addresses(ServerSettings(server=ServerSection(**server), auth=AuthSection(enabled=True)))  # type: ignore[arg-type]

    for address in ("0.0.0.0:8080", "10.0.0.1:8080", "[::]:8080", "yard.example:80"):
        there = {key: Address(address)}
        sentence = refused(**there)
        assert sentence is not None
        assert f"server.{key}" in sentence
        assert "server.tls.cert" in sentence
        assert "server.plain: true" in sentence
        assert refused(**there, plain=True) is None
        assert refused(**there, tls=ServerTlsSection(cert="c", key="k")) is None
    for address in ("127.0.0.1:8080", "localhost:8080", "[::1]:8080"):
        assert refused(**{key: Address(address)}) is None


def test_without_login_allowing_plain_text_does_not_open_the_port() -> None:
    settings = ServerSettings(server=ServerSection(http_address=Address("0.0.0.0:8080"), plain=True))
    assert "auth.enabled" in (refuse_unsafe_addresses(settings) or "")
