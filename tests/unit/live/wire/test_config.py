"""Errors in a settings file or a variable are one sentence with the line."""

import os
from pathlib import Path

import pytest
from msgspec import Struct

from gpuyard.live.wire.config import (
    Address,
    Duration,
    DurationGivenInHours,
    DurationGivenInMilliseconds,
    DurationOrNone,
    PeerAddress,
    WrongSettings,
    keys_of,
    load,
    variables,
)


class Server(Struct, frozen=True, forbid_unknown_fields=True):
    http_address: Address = Address("127.0.0.1:8080")
    token: str = ""
    timeout: Duration = Duration(5)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    server: Server = Server()
    names: list[str] = []
    limits: dict[str, int] = {}


def read(tmp_path: Path, text: str | bytes, env: dict[str, str] | None = None) -> Settings:
    path = tmp_path / "yard.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(Settings, path, env or {})


def complaint(tmp_path: Path, text: str | bytes, env: dict[str, str] | None = None) -> str:
    with pytest.raises(WrongSettings) as wrong:
        read(tmp_path, text, env)
    assert "\n" not in str(wrong.value)
    return str(wrong.value).replace(f"{tmp_path}/", "")


def reads(type_: type[Duration | Address], raw: object) -> bool:
    try:
        type_.read(raw)
    except ValueError:
        return False
    return True


def test_a_file_and_the_environment_together_make_the_settings(tmp_path: Path) -> None:
    text = "server:\n  http_address: ':80'\n  token: a\nlimits: {a: 1}\n"
    env = {
        "GPUYARD_SERVER__TOKEN": "123",
        "GPUYARD_SERVER__TIMEOUT": "500ms",
        "GPUYARD_NAMES": "[a, b]",
        "GPUYARD_LIMITS__B": "2",
        "GPUYARD_SERVER": "http://for-clients",
        "GPUYARD_TASK_ID": "7",
        "GPUYARD_SERVER__HTTP_ADDRESS": "",
        "PATH": "/bin",
    }
    assert read(tmp_path, text, env) == Settings(
        Server(Address(":80"), "123", Duration(0.5)), ["a", "b"], {"a": 1, "b": 2}
    )


def test_without_file_and_variables_everything_has_its_default() -> None:
    assert load(Settings, None, {}) == Settings()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "server:\n  token: a\n  http_adress: x\n",
            'yard.yaml, line 3: Unknown name "http_adress" in server; did you mean "http_address"?',
        ),
        ("servr: {}\n", 'yard.yaml, line 1: Unknown name "servr" in the settings; did you mean "server"?'),
        ("names:\n  - a\n  - 5\n", "yard.yaml, line 3: names[1] is 5; it must be text."),
        ("limits:\n  a: x\n", 'yard.yaml, line 2: limits.a is "x"; it must be a whole number.'),
        (
            "server:\n  timeout: soon\n",
            'yard.yaml, line 2: server.timeout is "soon"; it must be a duration above zero, such as 5, 5s, 500ms or 2m.',
        ),
        (
            "server:\n  token: 5\n",
            "yard.yaml, line 2: server.token is not valid (its value is not shown); it must be text.",
        ),
        (
            "server:\n  token: a\n  token: b\n",
            "yard.yaml, line 3: server.token is given twice, first in line 2; remove one of them.",
        ),
        ("server:\n\ttoken: a\n", "yard.yaml, line 2: there is a tab; indent YAML with spaces."),
        (
            "",
            "yard.yaml is empty; add settings, or omit the file to use the defaults.",
        ),
        (
            "# only a comment\n",
            "yard.yaml is empty; add settings, or omit the file to use the defaults.",
        ),
        ("- a\n", "yard.yaml, line 1: write settings as `section:` with `key: value` below it."),
        ("just words\n", "yard.yaml, line 1: write settings as `section:` with `key: value` below it."),
        (
            'server:\n  token: "half of a te',
            "yard.yaml, line 2: the file ends too early, in the block that begins on line 2; part of it is missing.",
        ),
        (
            "limits: {a: 1,",
            "yard.yaml, line 1: the file ends too early, in the block that begins on line 1; part of it is missing.",
        ),
        (
            "server:\n  http_addr",
            'yard.yaml, line 1: server is "http_addr"; it must be an object with http_address, token, timeout.',
        ),
        (b"server:\n  token: \xff\n", "yard.yaml, line 2: this is not UTF-8; save the file as UTF-8."),
        ("server:\n  token: a\0b\n", "yard.yaml, line 2: a character that is not allowed in a text file."),
        ("server: {}\n---\nserver: {}\n", "yard.yaml, line 2: a second document begins; only one is allowed."),
        ("? [a]\n: b\n", "yard.yaml, line 1: a key must be a single word."),
        (
            "server:\n  token: !!python/name:os.system\n",
            "yard.yaml, line 2: server.token has a value that cannot be read.",
        ),
    ],
)
def test_unusable_settings_are_one_sentence(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    assert complaint(tmp_path, text).startswith(sentence)


def test_all_errors_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "server:\n  tokn: a\n  timeout: soon\nnames: [a, 2, b, 3]\nlimits: {a: 1, b: many}\nnames: [c]\n"
    path = tmp_path / "yard.yaml"
    path.write_text(text)
    env = {"GPUYARD_SERVER__HTTP_ADDRESS": "8080"}

    def both(settings: Settings) -> list[tuple[str, str]]:
        return [("limits", f"limits has {len(settings.limits)} entry and names {len(settings.names)}.")]

    with pytest.raises(WrongSettings) as wrong:
        load(Settings, path, env, check=both)
    assert str(wrong.value).replace(f"{tmp_path}/", "").splitlines() == [
        'yard.yaml, line 2: Unknown name "tokn" in server; did you mean "token"?',
        'yard.yaml, line 3: server.timeout is "soon"; it must be a duration above zero, such as 5, 5s, 500ms or 2m.',
        "yard.yaml, line 4: names[1] is 2; it must be text.",
        "yard.yaml, line 4: names[3] is 3; it must be text.",
        'yard.yaml, line 5: limits.b is "many"; it must be a whole number.',
        "yard.yaml, line 5: limits has 1 entry and names 2.",
        "yard.yaml, line 6: names is given twice, first in line 4; remove one of them.",
        f'Environment variable GPUYARD_SERVER__HTTP_ADDRESS: server.http_address is "8080"; it must be {Address.words}.',
    ]


def test_an_ipv6_address_in_a_variable_is_not_read_as_yaml() -> None:
    assert load(Settings, None, {"GPUYARD_SERVER__HTTP_ADDRESS": "[::]:8080"}).server.http_address == "[::]:8080"


@pytest.mark.slow
def test_references_that_expand_to_billions_are_not_followed(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "too large after its aliases are expanded" in complaint(tmp_path, "\n".join(lines))
    assert "too large after its aliases are expanded" in complaint(tmp_path, "names: &a [*a]\n")
    assert "too deeply" in complaint(tmp_path, "names: " + "[" * 5000)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongSettings, match="does not exist"):
        load(Settings, tmp_path / "none.yaml", {})
    with pytest.raises(WrongSettings, match="is a folder"):
        load(Settings, tmp_path, {})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(WrongSettings, match=r"pipe cannot be read: this is a pipe, not a file\."):
        load(Settings, pipe, {})
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (5 * 1024 * 1024))
    with pytest.raises(WrongSettings, match="larger than 4 MiB"):
        load(Settings, large, {})
    closed = tmp_path / "closed.yaml"
    closed.write_text("names: []\n")
    closed.chmod(0)
    if os.geteuid():
        with pytest.raises(WrongSettings, match="cannot be read: Permission denied"):
            load(Settings, closed, {})


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            {"GPUYARD_SERVER__TOKN": "a"},
            'Environment variable GPUYARD_SERVER__TOKN: Unknown name "tokn" in server; did you mean "token"?',
        ),
        (
            {"GPUYARD_SERVER__TIMEOUT": "never"},
            'Environment variable GPUYARD_SERVER__TIMEOUT: server.timeout is "never"; it must be',
        ),
        ({"GPUYARD_NAMES": "[a"}, "Environment variable GPUYARD_NAMES, line 1: the file ends too early"),
        ({"GPUYARD_NAMES": "5"}, "Environment variable GPUYARD_NAMES: names is 5; it must be a list."),
        ({"GPUYARD_NAMES__A": "5"}, "Environment variable GPUYARD_NAMES__A: "),
    ],
)
def test_an_invalid_variable_is_named(tmp_path: Path, env: dict[str, str], sentence: str) -> None:
    assert complaint(tmp_path, "names: [x]\n", env).startswith(sentence)


def test_variables_of_another_program_are_ignored() -> None:
    env = {"GPUYARD_GPU__VIRTUAL": "4", "GPUYARD_EXECUTOR__USERS__A": "b"}
    assert load(Settings, None, env, not_ours={"GPUYARD_GPU__VIRTUAL", "GPUYARD_EXECUTOR__USERS"}) == Settings()
    with pytest.raises(WrongSettings, match="GPUYARD_GPU__VIRTUAL"):
        load(Settings, None, env, not_ours={"GPUYARD_EXECUTOR__USERS"})


def test_every_key_has_a_variable() -> None:
    assert keys_of(Settings)[0] == ("server", "http_address")
    assert variables(Settings) == {
        "GPUYARD_SERVER__HTTP_ADDRESS", "GPUYARD_SERVER__TOKEN", "GPUYARD_SERVER__TIMEOUT",
        "GPUYARD_NAMES", "GPUYARD_LIMITS",
    }  # fmt: skip


def test_errors_between_several_settings_have_a_place_too(tmp_path: Path) -> None:
    path = tmp_path / "yard.yaml"
    path.write_text("names: []\nserver:\n  token: a\n")
    with pytest.raises(WrongSettings, match=r"line 3: no\.$"):
        load(Settings, path, {}, check=lambda _: [("server.token", "no.")])
    with pytest.raises(WrongSettings, match=r"line 2: no\.$"):
        load(Settings, path, {}, check=lambda _: [("server.timeout", "no.")])


@pytest.mark.parametrize(
    ("raw", "seconds"), [(5, 5), (0.5, 0.5), ("5s", 5), ("500ms", 0.5), ("2m", 120), ("1h30m", 5400), ("7d", 604800)]
)
def test_durations_are_parsed(raw: object, seconds: float) -> None:
    assert Duration.read(raw) == seconds


def test_some_durations_without_a_unit_are_in_other_units() -> None:
    assert DurationGivenInMilliseconds.read(500) == DurationGivenInMilliseconds.read("500ms") == 0.5
    assert float(DurationGivenInHours.read(24)) == float(DurationGivenInHours.read("1d")) == 86400.0
    assert float(DurationOrNone.read(0)) == 0.0


@pytest.mark.parametrize("raw", [0, -1, "", "5 apples", "s", "5ss", True, None, float("nan"), float("inf"), 1e300, [5]])
def test_invalid_durations_are_refused(raw: object) -> None:
    assert not reads(Duration, raw)


@pytest.mark.parametrize(
    ("raw", "host", "port", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("localhost:80", "localhost", 80, True),
        (":8080", "0.0.0.0", 8080, False),
        ("[::1]:80", "::1", 80, True),
        ("[::]:80", "::", 80, False),
        ("0.0.0.0:0", "0.0.0.0", 0, False),
        ("gpu-1.lab:9090", "gpu-1.lab", 9090, False),
    ],
)
def test_addresses_are_parsed(raw: str, host: str, port: int, *, loopback: bool) -> None:
    address = Address.read(raw)
    assert (address.host, address.port, address.is_loopback) == (host, port, loopback)


@pytest.mark.parametrize(
    "raw", ["", "8080", "host", "host:", "host:x", "host:65536", "http://host:80", "::1:80", "[zz]:80", "a b:80", 8080]
)
def test_invalid_addresses_are_refused(raw: object) -> None:
    assert not reads(Address, raw)


def test_a_peer_address_needs_a_host_or_is_empty() -> None:
    assert PeerAddress.read("") == ""
    assert PeerAddress.read("a:1").host == "a"
    for raw in (":80", "a:0"):
        with pytest.raises(ValueError, match="needs a host"):
            PeerAddress.read(raw)
