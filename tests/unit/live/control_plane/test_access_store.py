"""Users and tokens: storage, authentication, and how soon changes apply."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from structlog.testing import capture_logs

from gpuyard.core.domain.values import TenantId
from gpuyard.live.control_plane import server
from gpuyard.live.control_plane.access import refusals as no
from gpuyard.live.control_plane.access.principal import AuthMethod, Denied, Principal, Role
from gpuyard.live.control_plane.access.store import AccessStore, NewToken, User
from gpuyard.live.control_plane.access.throttle import FREE_FAILURES, LONGEST_WAIT_SECONDS
from gpuyard.live.control_plane.stores.cluster_records import SqliteRecords
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreFromFuture, StoreLocked
from tests.unit.live.control_plane.clusters import until

LAB = TenantId("lab")
QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
HERE = "127.0.0.1"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class StoreFile:
    """A store in a folder that can be closed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "access.sqlite"
        self.clock = Clock()
        self.store = self.open()

    def open(self, hasher: PasswordHasher = QUICK) -> AccessStore:
        return AccessStore.open(self.path, clock=self.clock, hasher=hasher)

    def restart(self, hasher: PasswordHasher = QUICK) -> None:
        self.store.close()
        self.store = self.open(hasher)

    @property
    def records(self) -> SqliteRecords:
        assert isinstance(self.store._records, SqliteRecords)
        return self.store._records

    def token(self, username: str = "ann", expires_at: float | None = None) -> NewToken:
        made = self.store.make_token(username, "laptop", expires_at)
        assert isinstance(made, NewToken)
        return made


@pytest.fixture
def store_file(tmp_path: Path) -> StoreFile:
    store_file = StoreFile(tmp_path)
    assert isinstance(store_file.store.add_user("ann", "open sesame", LAB, Role.MEMBER), User)
    return store_file


def code_of(answer: object) -> str:
    assert isinstance(answer, Denied), answer
    assert answer.sentence.endswith(".")
    return answer.code


# --- users ------------------------------------------------------------------------------------------------------------


def test_a_user_survives_a_restart(store_file: StoreFile) -> None:
    before = store_file.store.users()
    store_file.restart()

    assert store_file.store.users() == before
    assert isinstance(store_file.store.check_login("ann", "open sesame", HERE), User)


def test_a_password_of_any_characters_works(store_file: StoreFile) -> None:
    for password in ("пароль 密码 🔑", "\udcff" * 8, "x" * 1024):
        assert store_file.store.set_password("ann", password) is None
        assert isinstance(store_file.store.check_login("ann", password, HERE), User)


@pytest.mark.parametrize("username", ["", "a b", "a/b", "x" * 65, "ann\n", "\udcff"])
def test_an_invalid_username_is_refused(store_file: StoreFile, username: str) -> None:
    assert isinstance(store_file.store.add_user(username, "open sesame", LAB, Role.MEMBER), no.BadUsername)


def test_an_invalid_change_is_reported_and_changes_nothing(store_file: StoreFile) -> None:
    store = store_file.store
    assert store.add_user("ann", "another one", LAB, Role.ADMIN) == no.UserExists("ann")
    assert isinstance(store.add_user("bob", "seven77", LAB, Role.ADMIN), no.BadPassword)
    assert isinstance(store.add_user("bob", "x" * 1025, LAB, Role.ADMIN), no.BadPassword)
    assert store.add_user("bob", "open sesame", None, Role.VIEWER) == no.UserWithoutTenant("viewer")
    assert store.change_user("ann", tenant=None) == no.UserWithoutTenant("member")
    assert store.change_user("bob", role=Role.ADMIN) == no.UnknownUser("bob")
    assert store.set_password("bob", "open sesame") == no.UnknownUser("bob")
    assert store.remove_user("bob") == no.UnknownUser("bob")
    assert store.make_token("bob") == no.UnknownUser("bob")
    assert isinstance(store.make_token("ann", "x" * 201), no.BadTokenName)
    assert store.make_token("ann", expires_at=store_file.clock.now) == no.TokenEndsInThePast()
    assert store.revoke_token("nothing") == no.UnknownToken("nothing")
    assert store.users() == [User("ann", LAB, Role.MEMBER, disabled=False, created_at=store_file.clock.now)]
    assert store.tokens() == []


def test_a_change_applies_to_the_next_request_and_after_a_restart(store_file: StoreFile) -> None:
    secret = store_file.token().secret
    store_file.store.change_user("ann", role=Role.OPERATOR, tenant=TenantId("infra"))

    for _ in range(2):
        who = store_file.store.find(secret, HERE)
        assert isinstance(who, Principal)
        assert (who.role, who.tenant) == (Role.OPERATOR, "infra")
        store_file.restart()


def test_a_disabled_user_is_rejected_with_token_and_password_until_enabled(store_file: StoreFile) -> None:
    secret = store_file.token().secret
    store_file.store.change_user("ann", disabled=True)
    assert code_of(store_file.store.find(secret, HERE)) == "UserDisabled"
    assert code_of(store_file.store.check_login("ann", "open sesame", HERE)) == "WrongLogin"

    store_file.store.change_user("ann", disabled=False)
    assert isinstance(store_file.store.find(secret, HERE), Principal)


def test_removing_a_user_removes_all_tokens(store_file: StoreFile) -> None:
    secret = store_file.token().secret
    store_file.store.remove_user("ann")
    assert code_of(store_file.store.find(secret, HERE)) == "UnknownToken"

    store_file.store.add_user("ann", "open sesame", LAB, Role.MEMBER)
    store_file.restart()
    assert code_of(store_file.store.find(secret, HERE)) == "UnknownToken"
    assert store_file.store.tokens() == []


def test_users_of_the_settings_are_added_once_and_then_kept_in_sync(store_file: StoreFile) -> None:
    for password, role in (("number one", Role.MEMBER), ("number one", Role.ADMIN), ("number two", Role.ADMIN)):
        user = store_file.store.ensure_user("eve", password, LAB, role)
        assert isinstance(user, User)
        assert user.role is role
        assert isinstance(store_file.store.check_login("eve", password, HERE), User)
    assert code_of(store_file.store.check_login("eve", "number one", HERE)) == "WrongLogin"
    assert isinstance(store_file.store.ensure_user("eve", "", LAB, Role.ADMIN), no.BadPassword)


# --- logging in -------------------------------------------------------------------------------------------------------


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(store_file: StoreFile) -> None:
    wrong = store_file.store.check_login("ann", "open", HERE)
    assert code_of(wrong) == "WrongLogin"
    assert store_file.store.check_login("nobody", "open", HERE) == wrong


def test_an_unknown_user_is_answered_no_faster_than_a_wrong_password(tmp_path: Path) -> None:
    store = AccessStore.open(tmp_path / "access.sqlite", hasher=PasswordHasher(time_cost=4, memory_cost=16384))
    store.add_user("ann", "open sesame", LAB, Role.MEMBER)

    def fastest(username: str) -> float:
        took = []
        for attempt in range(4):
            began = time.perf_counter()
            assert code_of(store.check_login(username, "wrong", f"10.0.0.{attempt}")) == "WrongLogin"
            took.append(time.perf_counter() - began)
        return min(took)

    assert fastest("nobody") > fastest("ann") / 3
    store.close()


def test_after_some_failures_each_further_one_costs_a_longer_wait(store_file: StoreFile) -> None:
    waits = []
    for _ in range(FREE_FAILURES + 8):
        while code_of(denied := store_file.store.check_login("ann", "wrong", HERE)) == "TooManyLogins":
            assert isinstance(denied, Denied)
            waits.append(int(dict(denied.headers)["retry-after"]))
            assert f"Try again in {waits[-1]} s." in denied.sentence
            store_file.clock.now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60][: len(waits)]
    assert max(waits) <= LONGEST_WAIT_SECONDS


def test_during_the_wait_even_the_right_password_is_rejected(store_file: StoreFile) -> None:
    for _ in range(FREE_FAILURES):
        store_file.store.check_login("ann", "wrong", HERE)
    assert code_of(store_file.store.check_login("ann", "open sesame", HERE)) == "TooManyLogins"
    assert isinstance(store_file.store.check_login("ann", "open sesame", "10.0.0.9"), User), (
        "another address is not concerned"
    )

    store_file.clock.now += 1
    assert isinstance(store_file.store.check_login("ann", "open sesame", HERE), User)
    assert code_of(store_file.store.check_login("ann", "wrong", HERE)) == "WrongLogin", "all was forgiven"


def test_setting_the_clock_back_does_not_extend_the_wait(store_file: StoreFile) -> None:
    for _ in range(FREE_FAILURES):
        store_file.store.check_login("ann", "wrong", HERE)
    store_file.clock.now -= 86400
    assert isinstance(store_file.store.check_login("ann", "open sesame", HERE), User)


def test_concurrent_guesses_are_slowed_down_too(store_file: StoreFile) -> None:
    answers: list[str] = []
    guessers = [
        threading.Thread(target=lambda: answers.append(code_of(store_file.store.check_login("ann", "wrong", HERE))))
        for _ in range(30)
    ]
    for guesser in guessers:
        guesser.start()
    for guesser in guessers:
        guesser.join(timeout=30)
    assert len(answers) == 30
    assert answers.count("WrongLogin") <= FREE_FAILURES + 1


def test_a_hash_with_weaker_parameters_is_replaced_at_the_next_login(store_file: StoreFile) -> None:
    stronger = PasswordHasher(time_cost=2, memory_cost=128, parallelism=1)
    store_file.restart(stronger)
    assert isinstance(store_file.store.check_login("ann", "open sesame", HERE), User)
    store_file.restart(stronger)
    assert isinstance(store_file.store.check_login("ann", "open sesame", HERE), User)
    store_file.store.close()

    assert b"m=128,t=2,p=1" in store_file.path.read_bytes()


def test_a_new_password_ends_logins_and_leaves_tokens(store_file: StoreFile) -> None:
    login = store_file.store.log_in("ann", 3600.0)
    assert isinstance(login, NewToken)
    token = store_file.token()
    store_file.store.set_password("ann", "another one")

    for _ in range(2):
        assert code_of(store_file.store.find(login.secret, HERE)) == "TokenRevoked"
        assert isinstance(store_file.store.find(token.secret, HERE), Principal)
        store_file.restart()


def test_a_login_expires_and_is_forgotten_at_the_next_one(store_file: StoreFile) -> None:
    first = store_file.store.log_in("ann", 3600.0)
    assert isinstance(first, NewToken)
    who = store_file.store.find(first.secret, HERE)
    assert isinstance(who, Principal)
    assert who.via is AuthMethod.LOGIN

    store_file.clock.now += 3600.0
    assert code_of(store_file.store.find(first.secret, HERE)) == "TokenExpired"
    second = store_file.store.log_in("ann", 3600.0)
    assert isinstance(second, NewToken)
    assert [token.id for token in store_file.store.tokens("ann")] == [second.token.id]
    store_file.restart()
    assert [token.id for token in store_file.store.tokens("ann")] == [second.token.id]


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_identifies_its_user(store_file: StoreFile) -> None:
    made = store_file.token()

    assert made.secret.startswith("gy_")
    assert len(made.secret) == 3 + 43
    for _ in range(2):
        assert store_file.store.find(made.secret, "10.0.0.7") == Principal(
            "ann", LAB, Role.MEMBER, AuthMethod.TOKEN, "10.0.0.7", made.token.id
        )
        store_file.restart()


@pytest.mark.parametrize("secret", ["", "gy_", "gy_" + "A" * 43, "\udcff", "x" * 100_000])
def test_an_unknown_token_is_rejected(store_file: StoreFile, secret: str) -> None:
    store_file.token()
    assert code_of(store_file.store.find(secret, HERE)) == "UnknownToken"


def test_a_revoked_token_is_rejected_at_once(store_file: StoreFile) -> None:
    made = store_file.token()
    assert isinstance(store_file.store.find(made.secret, HERE), Principal)
    assert store_file.store.revoke_token(made.token.id) is None

    for _ in range(2):
        denied = store_file.store.find(made.secret, HERE)
        assert code_of(denied) == "TokenRevoked"
        assert isinstance(denied, Denied)
        assert "2027-01-15" in denied.sentence
        store_file.restart()


def test_an_acknowledged_revocation_survives_a_kill(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from argon2 import PasswordHasher
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.access.principal import Role

store = AccessStore.open(Path(sys.argv[1]), hasher=PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
store.add_user("ann", "open sesame", "lab", Role.MEMBER)
made = store.make_token("ann")
store.revoke_token(made.token.id)
print(made.secret, flush=True)
sys.stdin.read()
"""
    path = tmp_path / "access.sqlite"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        secret = server.stdout.readline().strip()
        with pytest.raises(StoreLocked, match=r"Another process uses .*access\.sqlite \(users and tokens\)"):
            AccessStore.open(path)
        server.kill()

    store = AccessStore.open(path, hasher=QUICK)
    assert code_of(store.find(secret, HERE)) == "TokenRevoked"
    store.close()


def test_an_expired_token_says_since_when(store_file: StoreFile) -> None:
    made = store_file.token(expires_at=store_file.clock.now + 10)
    assert isinstance(store_file.store.find(made.secret, HERE), Principal)
    store_file.clock.now += 10

    denied = store_file.store.find(made.secret, HERE)
    assert code_of(denied) == "TokenExpired"
    assert isinstance(denied, Denied)
    assert denied.status == 401
    assert "expired at 2027-01-15 08:00:10 UTC" in denied.sentence


def test_last_uses_are_noted_once_a_minute_and_written_on_request(store_file: StoreFile) -> None:
    made = store_file.token()
    began = store_file.clock.now
    seen = []
    for _ in range(5):
        store_file.store.find(made.secret, HERE)
        seen.append(store_file.store.tokens()[0].last_used_at)
        store_file.clock.now += 25
    assert seen == [began, began, began, began + 75, began + 75]

    store_file.store.write_uses()
    store_file.restart()
    assert store_file.store.tokens()[0].last_used_at == began + 75


def test_last_uses_that_cannot_be_written_now_are_written_later(
    store_file: StoreFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "NOTE_USES_SECONDS", 0.01)
    made = store_file.token()

    async def story() -> None:
        store_file.records._database.execute("PRAGMA query_only = ON")
        store_file.store.find(made.secret, HERE)
        with capture_logs() as said:
            noting = asyncio.create_task(server.note_uses(store_file.store))
            await until(lambda: [line["event"] for line in said].count("token_use_write_failed") > 1)
        assert store_file.store._used
        store_file.records._database.execute("PRAGMA query_only = OFF")
        await until(lambda: not store_file.store._used)
        noting.cancel()

    asyncio.run(story())
    store_file.restart()
    assert store_file.store.tokens()[0].last_used_at == store_file.clock.now


def test_a_store_that_cannot_be_written_can_be_closed(store_file: StoreFile) -> None:
    store_file.store.find(store_file.token().secret, HERE)
    store_file.records._database.execute("PRAGMA query_only = ON")
    store_file.restart()
    assert store_file.store.user("ann") is not None


def test_looking_up_a_token_takes_microseconds(store_file: StoreFile) -> None:
    for _ in range(50):
        store_file.token()
    secret = store_file.token().secret
    took = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1000):
            store_file.store.find(secret, HERE)
        took.append((time.perf_counter() - began) / 1000)
    assert min(took) < 50e-6


# --- the file ---------------------------------------------------------------------------------------------------------


def test_neither_passwords_nor_tokens_are_in_the_file_and_it_is_private(store_file: StoreFile) -> None:
    made = store_file.token()
    assert made.secret not in repr(made)
    for file in store_file.path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert b"open sesame" not in file.read_bytes()
        assert made.secret.encode() not in file.read_bytes()
        assert made.secret[3:].encode() not in file.read_bytes()


def test_a_public_file_is_made_private(store_file: StoreFile) -> None:
    store_file.path.chmod(0o644)
    store_file.restart()
    assert stat.S_IMODE(store_file.path.stat().st_mode) == 0o600


def test_a_damaged_file_is_refused_with_a_solution_and_not_changed(store_file: StoreFile) -> None:
    for number in range(200):
        store_file.store.make_token("ann", f"token number {number}")
    store_file.store.close()
    whole = store_file.path.read_bytes()
    for damaged in (b"", b"x" * 9000, whole[:5000], whole[:4096] + b"\xa5" * (len(whole) - 4096)):
        store_file.path.write_bytes(damaged)
        with pytest.raises(StoreDamaged, match=r"users and tokens.* is damaged.*Restore it from a backup"):
            store_file.open()
        assert store_file.path.read_bytes() == damaged


def test_a_file_of_a_newer_version_or_of_another_program_is_refused(store_file: StoreFile, tmp_path: Path) -> None:
    store_file.store.close()
    database = sqlite3.connect(store_file.path)
    database.execute("PRAGMA user_version = 3")
    database.close()
    with pytest.raises(StoreFromFuture, match="newer gpuyard"):
        store_file.open()

    database = sqlite3.connect(tmp_path / "other.sqlite")
    database.execute("CREATE TABLE x (y)")
    database.close()
    with pytest.raises(StoreDamaged, match="not a file of gpuyard"):
        AccessStore.open(tmp_path / "other.sqlite")


def test_a_creation_that_was_killed_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "access.sqlite.new").write_bytes(b"half")
    AccessStore.open(tmp_path / "access.sqlite", hasher=QUICK).close()
    assert [file.name for file in tmp_path.iterdir()] == ["access.sqlite"]


def test_an_unwritable_folder_is_reported_in_one_sentence(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from gpuyard.live.control_plane.stores.cluster_records import SqliteRecords
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.access.store import AccessStore
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    AccessStore.open(Path(sys.argv[1]))
except StoreError as error:
    print(error)
"""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "access.sqlite")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "cannot be used: Permission denied. Check the folder and its permissions." in done.stdout, done.stderr
