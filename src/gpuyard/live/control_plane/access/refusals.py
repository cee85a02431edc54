"""Refusals of changes of users and tokens, as values like all refusals (gpuyard/core/domain/refusals.py)."""

from gpuyard.core.domain.refusals import Conflict, Invalid


class BadUsername(Invalid, frozen=True):
    """The user name is invalid."""

    text = "{username} is no username; use 1 to 64 letters, digits, dots, dashes, underscores and @."
    username: str


class BadPassword(Invalid, frozen=True):
    """The password is invalid."""

    text = "A password has between {shortest} and {longest} characters."
    shortest: int
    longest: int


class BadPasswordHash(Invalid, frozen=True):
    """The value begins like a password hash but is not a valid one."""

    text = "The password begins with $argon2 and is no Argon2 hash; give a whole one, or the password itself."


class UserWithoutTenant(Invalid, frozen=True):
    """The role needs a tenant, and none is given."""

    text = "A {role} needs a tenant_id: it sees the tasks of that tenant only."
    role: str


class BadTokenName(Invalid, frozen=True):
    """The description of a token is too long, or cannot be stored."""

    text = "The name of a token has at most {longest} characters, and no NUL among them."
    longest: int


class TokenEndsInThePast(Invalid, frozen=True):
    """The token would be unusable."""

    text = "expires_at lies in the past; a token must be of use for a while."


class UserExists(Conflict, frozen=True):
    """A user of this name exists."""

    text = "There is a user {username} already; change that one, or choose another name."
    username: str


class UnknownUser(Conflict, frozen=True):
    """The user does not exist."""

    text = "There is no user {username}."
    username: str


class UnknownToken(Conflict, frozen=True):
    """The token does not exist."""

    text = "There is no token with the id {token}."
    token: str
