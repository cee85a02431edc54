"""Users and tokens, stored and in memory.

Everything is read into memory once. A change is made durable first and then applied in memory, so the next request sees
it; requests never read the store. So there is one writer: a file is locked while it is open, a database accepts the
changes of the current leader only. A reader of a database calls `refresh` now and then. A change whose outcome is unknown,
because the database did not answer, is not applied in memory; before the next change, everything is read again.

The store holds no usable credentials: passwords are stored as Argon2 hashes, tokens as the SHA-256 of 32 random bytes
(these cannot be guessed, so a fast hash is enough, and a lookup takes microseconds).

`check_login`, `add_user`, `set_password` and `ensure_user` take a tenth of a second and 64 MiB on purpose: call them in
a thread. All methods may be called from any thread.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from threading import BoundedSemaphore, RLock
from typing import Self

import msgspec
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from gpuyard.core.domain.errors import WriterDeposed
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TenantId, Value
from gpuyard.live.control_plane.access import refusals as no
from gpuyard.live.control_plane.access.principal import ROLE_SCOPES, Action, AuthMethod, Denied, Principal, Role, Scope
from gpuyard.live.control_plane.access.throttle import Throttle
from gpuyard.live.control_plane.stores.cluster_records import Change, ClusterRecords, Delete, Put, Row, SqliteRecords
from gpuyard.live.control_plane.stores.database import StoreError, StoreUnreachable
from gpuyard.live.control_plane.stores.record_layouts import ACCESS_LAYOUT, TOKENS, USERS
from gpuyard.live.wire.limits import LONGEST_PASSWORD, SHORTEST_PASSWORD

TOKEN_PREFIX = "gy_"  # noqa: S105 - lets secret scanners recognize a leaked token
SESSION_PREFIX = "gys_"
LONGEST_TOKEN_NAME = 200
MOST_SESSIONS = 100
"""Number of sessions of one user; the oldest ends when another one begins."""

_USERNAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_USE_NOTED_SECONDS = 60.0
_HASHES_AT_ONCE = 2
"""Each takes 64 MiB: a flood of logins must not use up the scheduler's memory."""
_HASH_WAIT_SECONDS = 5.0

_INVALID = (("www-authenticate", 'Bearer realm="gpuyard", error="invalid_token"'),)


class User(Value, frozen=True):
    """A user who can log in."""

    username: str
    tenant: TenantId | None
    role: Role
    disabled: bool
    created_at: float


class Token(Value, frozen=True):
    """The stored data of a token; only its owner has the token itself."""

    id: str
    username: str
    name: str
    via: AuthMethod
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    uid: int | None = None
    """Of a session that was begun over loopback: the owner of the browser's process; others cannot use it."""


class NewToken(Value, frozen=True):
    """A new token with its secret, which is shown only once."""

    token: Token
    secret: str

    def __repr__(self) -> str:
        return f"NewToken({self.token.id})"


class AccessStore:
    """The users and tokens of a cluster."""

    def __init__(
        self, records: ClusterRecords, clock: Callable[[], float] = time.time, hasher: PasswordHasher | None = None
    ) -> None:
        hasher = hasher or PasswordHasher()
        self._records = records
        self._clock = clock
        self._hasher = hasher
        self._changing = RLock()
        self._hashing = BoundedSemaphore(_HASHES_AT_ONCE)
        self._throttle = Throttle(clock)
        self._nobody_hash = hasher.hash(secrets.token_bytes(16))
        """Verified in place of the hash of an unknown user, so that both cases take the same time."""
        self._users: dict[str, User] = {}
        self._hashes: dict[str, str] = {}
        self._tokens: dict[str, Token] = {}
        self._by_digest: dict[bytes, str] = {}
        self._digests: dict[str, bytes] = {}
        self._used: dict[str, float] = {}
        """Last-use times of tokens that are not written yet."""
        self._seen = 0
        self._unsure = False
        """The outcome of the last change is unknown."""
        self._load()

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time, hasher: PasswordHasher | None = None) -> Self:
        """Open the file, or create it."""
        records = SqliteRecords.open(path, ACCESS_LAYOUT)
        try:
            return cls(records, clock, hasher)
        except BaseException:
            records.close()
            raise

    def close(self) -> None:
        """Write the last-use times if possible, and release the file or the connection."""
        with suppress(StoreError, WriterDeposed):
            self.write_uses()
        self._records.close()

    def refresh(self) -> bool:
        """Read everything again if another scheduler has changed something; return whether it has."""
        with self._changing:
            if not self._unsure and self._records.changes() == self._seen:
                return False
            self._load()
            return True

    # --- users --------------------------------------------------------------------------------------------------------

    def users(self) -> list[User]:
        """Return all users, by name."""
        with self._changing:
            return sorted(self._users.values(), key=lambda user: user.username)

    def user(self, username: str) -> User | None:
        """Return a user, or None."""
        return self._users.get(username)

    def add_user(self, username: str, password: str, tenant: TenantId | None, role: Role) -> User | Refusal:
        """Add a user. Slow: hashes the password."""
        user = User(username, tenant, role, disabled=False, created_at=self._clock())
        if wrong := _wrong_with_user(user) or _wrong_with_password(password):
            return wrong
        if username in self._users:
            return no.UserExists(username)
        password_hash = self._hash(password)
        with self._change():
            if username in self._users:  # added by another thread meanwhile
                return no.UserExists(username)
            self._write(Put(USERS, [_user_row(user, password_hash)]))
            self._users[username], self._hashes[username] = user, password_hash
        return user

    def change_user(
        self,
        username: str,
        *,
        tenant: TenantId | msgspec.UnsetType | None = msgspec.UNSET,
        role: Role | msgspec.UnsetType = msgspec.UNSET,
        disabled: bool | msgspec.UnsetType = msgspec.UNSET,
    ) -> User | Refusal:
        """Change the given fields from the next request on. Tokens of a disabled user are kept but rejected."""
        with self._change():
            user = self._users.get(username)
            if user is None:
                return no.UnknownUser(username)
            asked = {"tenant": tenant, "role": role, "disabled": disabled}
            given = {field: value for field, value in asked.items() if value is not msgspec.UNSET}
            changed = msgspec.structs.replace(user, **given)
            if wrong := _wrong_with_user(changed):
                return wrong
            self._write(Put(USERS, [_user_row(changed, self._hashes[username])]))
            self._users[username] = changed
            return changed

    def set_password(self, username: str, password: str, revoke_tokens: bool = False) -> Refusal | None:
        """Set a password; logins made with the old one end. Slow: hashes the password."""
        if wrong := _wrong_with_password(password):
            return wrong
        password_hash = self._hash(password)
        with self._change():
            if username not in self._users:
                return no.UnknownUser(username)
            self._replace_hash(username, password_hash, revoke_tokens)
        return None

    def _replace_hash(self, username: str, password_hash: str, revoke_tokens: bool = False) -> None:
        """Store another password; logins and sessions end, and with `revoke_tokens` all other tokens, too."""
        now = self._clock()
        with self._change():
            revoked = [
                msgspec.structs.replace(token, revoked_at=now)
                for token in self.tokens(username)
                if (token.via is not AuthMethod.TOKEN or revoke_tokens) and token.revoked_at is None
            ]
            self._write(
                Put(USERS, [_user_row(self._users[username], password_hash)]),
                Put(TOKENS, [self._token_row(token) for token in revoked]),
            )
            self._hashes[username] = password_hash
            self._tokens.update((token.id, token) for token in revoked)

    def ensure_user(self, username: str, password: str, tenant: TenantId | None, role: Role) -> User | Refusal:
        """Add a user of the configuration, or change it where it differs. Slow: hashes or verifies the password.

        A password that is already an Argon2 hash is stored unchanged.
        """
        if password.startswith("$argon2"):
            return self._ensure_hash(username, password, tenant, role)
        if username not in self._users:
            return self.add_user(username, password, tenant, role)
        if not self._verify(self._hashes[username], password) and (wrong := self.set_password(username, password)):
            return wrong
        return self.change_user(username, tenant=tenant, role=role)

    def _ensure_hash(self, username: str, password_hash: str, tenant: TenantId | None, role: Role) -> User | Refusal:
        try:
            extract_parameters(password_hash)
        except InvalidHashError:
            return no.BadPasswordHash()
        if username not in self._users:
            added = self.add_user(username, secrets.token_urlsafe(32), tenant, role)
            if isinstance(added, Refusal):
                return added
        if self._hashes[username] != password_hash:
            self._replace_hash(username, password_hash)
        return self.change_user(username, tenant=tenant, role=role)

    def remove_user(self, username: str) -> Refusal | None:
        """Remove a user and all tokens of the user."""
        with self._change():
            if username not in self._users:
                return no.UnknownUser(username)
            theirs = [token.id for token in self.tokens(username)]
            self._write(Delete(TOKENS, theirs), Delete(USERS, [username]))
            del self._users[username], self._hashes[username]
            self._forget(theirs)
        return None

    # --- logging in ---------------------------------------------------------------------------------------------------

    def check_login(self, username: str, password: str, address: str) -> User | Denied:
        """Verify a user's password. Slow on purpose, and equally slow for an unknown user."""
        if denied := self._throttle.check(username, address):
            return denied
        if not self._hashing.acquire(timeout=_HASH_WAIT_SECONDS):
            return Denied(
                429, "TooManyLogins", "Too many logins at once. Try again in a few seconds.", (("retry-after", "5"),)
            )
        try:
            if denied := self._throttle.check(username, address):  # earlier logins in the queue may have failed
                return denied
            known = self._hashes.get(username)
            right = _verified(self._hasher, known or self._nobody_hash, password) and known is not None
            if not right:
                self._throttle.failed(username, address)
        finally:
            self._hashing.release()
        user = self._users.get(username)
        if not right or user is None or user.disabled:
            return Denied(401, "WrongLogin", "The username or the password is wrong, or the user is disabled.")
        self._throttle.succeeded(username, address)
        if known and self._hasher.check_needs_rehash(known):
            self._rehash(username, known, password)
        return user

    def _rehash(self, username: str, old: str, password: str) -> None:
        """Hash the password again with the current, stronger parameters; it is only known during a login."""
        password_hash = self._hash(password)
        with self._change():
            if self._hashes.get(username) != old:  # changed meanwhile
                return
            self._write(Put(USERS, [_user_row(self._users[username], password_hash)]))
            self._hashes[username] = password_hash

    def _hash(self, password: str) -> str:
        with self._hashing:
            return self._hasher.hash(_encoded(password))

    def _verify(self, password_hash: str, password: str) -> bool:
        with self._hashing:
            return _verified(self._hasher, password_hash, password)

    # --- tokens -------------------------------------------------------------------------------------------------------

    def make_token(
        self,
        username: str,
        name: str = "",
        expires_at: float | None = None,
        via: AuthMethod = AuthMethod.TOKEN,
        uid: int | None = None,
    ) -> NewToken | Refusal:
        """Create a token, whose secret is shown once. Expired logins of the user are deleted."""
        now = self._clock()
        if len(name) > LONGEST_TOKEN_NAME or "\0" in name:  # PostgreSQL stores no text with a NUL
            return no.BadTokenName(LONGEST_TOKEN_NAME)
        if expires_at is not None and expires_at <= now:
            return no.TokenEndsInThePast()
        secret = (SESSION_PREFIX if via is AuthMethod.SESSION else TOKEN_PREFIX) + secrets.token_urlsafe(32)
        digest = _digest(secret)
        token = Token(secrets.token_hex(6), username, name, via, now, expires_at, None, None, uid)
        with self._change():
            if username not in self._users:
                return no.UnknownUser(username)
            over = [
                old.id for old in self.tokens(username) if old.via is not AuthMethod.TOKEN and not _is_live(old, now)
            ]
            if via is AuthMethod.SESSION:
                live = [old.id for old in self.tokens(username) if old.via is via and _is_live(old, now)]
                over += live[MOST_SESSIONS - 1 :]
            self._write(Delete(TOKENS, over), Put(TOKENS, [_token_row(token, digest)]))
            self._forget(over)
            self._keep(token, digest)
        return NewToken(token, secret)

    def log_in(self, username: str, seconds: float) -> NewToken | Refusal:
        """Create the token of a successful login, valid for this many seconds."""
        return self.make_token(username, "login", self._clock() + seconds, AuthMethod.LOGIN)

    def begin_session(self, username: str, seconds: float, uid: int | None) -> NewToken | Refusal:
        """Begin the session of a browser after a successful login; it ends after this many seconds at the latest."""
        return self.make_token(username, "browser session", self._clock() + seconds, AuthMethod.SESSION, uid)

    def find_session(
        self, secret: str, address: str, uid: int | None, idle_seconds: float, *, note_use: bool = True
    ) -> Principal | Denied:
        """Return the principal of a session, from memory; one that was not used for `idle_seconds` has ended.

        Without `note_use`, this is not a use of it.
        """
        token = self._tokens.get(self._by_digest.get(_digest(secret), ""))
        user = self._users.get(token.username) if token else None
        if token is None or user is None or token.via is not AuthMethod.SESSION or token.revoked_at is not None:
            return _denied("SessionEnded", "This session has ended. Log in again.")
        if token.uid != uid:
            return _denied("SessionEnded", "This session was begun by another user of this machine. Log in again.")
        now = self._clock()
        used_at = self._used.get(token.id, token.last_used_at) or token.created_at
        if (token.expires_at or 0.0) <= now or now - used_at >= idle_seconds:
            return _denied("SessionExpired", "This session has expired. Log in again.")
        return self._admit(token, user, address, now, note_use=note_use)

    def end_session(self, token_id: str) -> None:
        """End a session; nothing of it is kept."""
        with self._change():
            token = self._tokens.get(token_id)
            if token is not None and token.via is AuthMethod.SESSION:
                self._write(Delete(TOKENS, [token_id]))
                self._forget([token_id])

    def tokens(self, username: str | None = None) -> list[Token]:
        """Return all tokens, or those of a user, newest first."""
        with self._changing:
            found = [
                msgspec.structs.replace(token, last_used_at=self._used.get(token.id, token.last_used_at))
                for token in self._tokens.values()
                if username is None or token.username == username
            ]
        return sorted(found, key=lambda token: (-token.created_at, token.id))

    def token(self, token_id: str) -> Token | None:
        """Return the data of a token, for example to check its owner before it is revoked; None if unknown."""
        return self._tokens.get(token_id)

    def revoke_token(self, token_id: str) -> Refusal | None:
        """Revoke a token from now on. Repeating it changes nothing."""
        with self._change():
            token = self._tokens.get(token_id)
            if token is None:
                return no.UnknownToken(token_id)
            if token.revoked_at is None:
                revoked = msgspec.structs.replace(token, revoked_at=self._clock())
                self._write(Put(TOKENS, [self._token_row(revoked)]))
                self._tokens[token_id] = revoked
        return None

    def find(self, secret: str, address: str, *, note_use: bool = True) -> Principal | Denied:
        """Return the principal of a token, from memory. Called for every request."""
        token = self._tokens.get(self._by_digest.get(_digest(secret), ""))
        user = self._users.get(token.username) if token else None
        if token is None or user is None or token.via is AuthMethod.SESSION:  # a session needs the checks of a cookie
            return _denied("UnknownToken", "Unknown token. Create another one or log in again.")
        now = self._clock()
        if token.revoked_at is not None:
            return _denied(
                "TokenRevoked", f"This token was revoked at {_spoken(token.revoked_at)}. Create another one."
            )
        if token.expires_at is not None and token.expires_at <= now:
            return _denied(
                "TokenExpired",
                f"This token expired at {_spoken(token.expires_at)}. Create another one or log in again.",
            )
        return self._admit(token, user, address, now, note_use=note_use)

    def _admit(self, token: Token, user: User, address: str, now: float, *, note_use: bool) -> Principal | Denied:
        if user.disabled:
            return _denied("UserDisabled", f"The user {user.username} is disabled. Ask an administrator.")
        last_used_at = self._used.get(token.id, token.last_used_at)
        exact = token.via is AuthMethod.SESSION  # it ends when it is not used
        if note_use and (last_used_at is None or exact or now - last_used_at >= _USE_NOTED_SECONDS):
            self._used[token.id] = now
        return Principal(user.username, user.tenant, user.role, token.via, address, token.id)

    def write_uses(self) -> None:
        """Write the last-use times of tokens. Call it about once a minute; no request waits for it."""
        with self._change():
            uses = dict(self._used)
            if not uses:
                return
            used = [
                msgspec.structs.replace(token, last_used_at=at)
                for token_id, at in uses.items()
                if (token := self._tokens.get(token_id))
            ]
            self._write(Put(TOKENS, [self._token_row(token) for token in used]))
            self._tokens.update((token.id, token) for token in used)
            for token_id, at in uses.items():
                if self._used.get(token_id) == at:
                    del self._used[token_id]

    # --- memory and disk ----------------------------------------------------------------------------------------------

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Let no other thread change anything; begin with what is stored."""
        with self._changing:
            if self._unsure:
                self._load()
            yield

    def _write(self, *changes: Change) -> None:
        try:
            self._records.write(*changes)
        except StoreUnreachable:
            self._unsure = True
            raise

    def _load(self) -> None:
        """Read everything into memory. Requests meanwhile see the old state."""
        seen = self._records.changes()  # first: a change during the next queries is then found the next time
        users, hashes = dict[str, User](), dict[str, str]()
        for username, password_hash, tenant, role, disabled, created_at in self._records.rows(USERS):
            users[username] = User(username, tenant, Role(role), bool(disabled), created_at)
            hashes[username] = password_hash
        tokens, digests = dict[str, Token](), dict[str, bytes]()
        for token_id, digest, username, name, via, *times in self._records.rows(TOKENS):
            tokens[token_id] = Token(token_id, username, name, AuthMethod(via), *times)
            digests[token_id] = digest
        self._users, self._hashes, self._tokens, self._digests = users, hashes, tokens, digests
        self._by_digest = {digest: token_id for token_id, digest in digests.items()}
        self._used = {token_id: at for token_id, at in dict(self._used).items() if token_id in tokens}
        self._seen, self._unsure = seen, False

    def _token_row(self, token: Token) -> Row:
        return _token_row(token, self._digests[token.id])

    def _keep(self, token: Token, digest: bytes) -> None:
        self._tokens[token.id] = token
        self._by_digest[digest] = token.id
        self._digests[token.id] = digest

    def _forget(self, token_ids: Iterable[str]) -> None:
        for token_id in token_ids:
            del self._by_digest[self._digests.pop(token_id)], self._tokens[token_id]
            self._used.pop(token_id, None)


def _wrong_with_user(user: User) -> Refusal | None:
    if not _USERNAME.fullmatch(user.username):
        return no.BadUsername(user.username[:80])
    if not user.tenant and ROLE_SCOPES[Action.SEE][user.role] is Scope.OWN:
        return no.UserWithoutTenant(user.role)
    return None


def _wrong_with_password(password: str) -> Refusal | None:
    if SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        return None
    return no.BadPassword(SHORTEST_PASSWORD, LONGEST_PASSWORD)


def _user_row(user: User, password_hash: str) -> Row:
    return user.username, password_hash, user.tenant, user.role.value, int(user.disabled), user.created_at


def _token_row(token: Token, digest: bytes) -> Row:
    times = (token.created_at, token.expires_at, token.revoked_at, token.last_used_at)
    return token.id, digest, token.username, token.name, token.via.value, *times, token.uid


def _verified(hasher: PasswordHasher, password_hash: str, password: str) -> bool:
    with suppress(VerificationError, InvalidHashError):
        return hasher.verify(password_hash, _encoded(password))
    return False


def _encoded(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _is_live(token: Token, now: float) -> bool:
    return token.revoked_at is None and (token.expires_at is None or token.expires_at > now)


def _denied(code: str, sentence: str) -> Denied:
    return Denied(401, code, sentence, _INVALID)


def _spoken(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
