"""The key that encrypts secrets in a database, which more people can read than a file of the scheduler.

The key is 32 random bytes, as 64 hex digits or as base64, in the environment variable GPUYARD_SECRETS_KEY or in a file.
Every scheduler of a cluster has the same one. Values are encrypted with AES-256-GCM. The place of a value (the task, the
name of the document) is authenticated with it, so a value that is moved to another row is not decrypted there. Nonces
are drawn at random: one key is good for 2^32 values.
"""

import binascii
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError
from gpuyard.system.files import replace_file

KEY_VARIABLE = "GPUYARD_SECRETS_KEY"
KEY_BYTES = 32
KEY_FILE = "secrets_key"
"""Name of the file of the key in a data folder."""
_NONCE_BYTES = 12
_FORMAT = b"\x01"
"""First byte of an encrypted value: AES-256-GCM, nonce, ciphertext with tag."""
_CHECK = b"gpuyard"


class WrongSecretsKey(StoreError):
    """The key of the secrets is missing or wrong. Use the key that this database was created with."""


class Cipher(Protocol):
    """Encrypts values for their place."""

    def seal(self, content: bytes, place: str) -> bytes:
        """Return the value as it is stored."""
        ...

    def unseal(self, stored: bytes, place: str) -> bytes:
        """Return a stored value. Raises StoreDamaged if it was not sealed for this place with this key."""
        ...


class NoCipher:
    """For files that only their owner can read."""

    def seal(self, content: bytes, place: str) -> bytes:
        """Return the value unchanged."""
        del place
        return content

    def unseal(self, stored: bytes, place: str) -> bytes:
        """Return the value unchanged."""
        del place
        return stored


class AesGcmCipher:
    """Encrypts with AES-256-GCM."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as missing:
            raise StoreError(
                "Secrets in PostgreSQL need the package cryptography: pip install 'gpuyard[postgres]'."
            ) from missing
        self._aead = AESGCM(key)

    def seal(self, content: bytes, place: str) -> bytes:
        """Return the encrypted value."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _FORMAT + nonce + self._aead.encrypt(nonce, content, place.encode())

    def unseal(self, stored: bytes, place: str) -> bytes:
        """Return the decrypted value."""
        from cryptography.exceptions import InvalidTag

        nonce, sealed = stored[1 : 1 + _NONCE_BYTES], stored[1 + _NONCE_BYTES :]
        try:
            if stored[:1] != _FORMAT or len(nonce) != _NONCE_BYTES:
                raise InvalidTag
            return self._aead.decrypt(nonce, sealed, place.encode())
        except InvalidTag:
            raise StoreDamaged(
                f"The stored value of {place} is damaged or was encrypted with another key. Restore the database from a backup."
            ) from None


class KeySource(NamedTuple):
    """Where the key is found: in the environment if the variable is set, otherwise in the file."""

    file: Path | None = None
    environment: Mapping[str, str] = os.environ

    def read(self) -> bytes | None:
        """Return the key; None: there is none. Raises WrongSecretsKey if it is not one."""
        said = self.environment.get(KEY_VARIABLE, "")
        if said.strip():
            return _decoded(said, f"The environment variable {KEY_VARIABLE}")
        if self.file is None:
            return None
        try:
            if self.file.stat().st_mode & 0o007:
                raise WrongSecretsKey(
                    f"Every user can use the key of the secrets in {self.file}. Make it private: chmod 600."
                )
            return _decoded(self.file.read_text(encoding="ascii", errors="replace"), f"The file {self.file}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WrongSecretsKey(
                f"The key of the secrets in {self.file} cannot be read: {error.strerror}. Check its owner and mode."
            ) from error

    def create(self) -> bytes:
        """Draw a key and write it to the file, readable by its owner only."""
        if self.file is None:
            raise WrongSecretsKey(
                f"Secrets in a database need a key: set {KEY_VARIABLE} to 32 random bytes as hex or base64, or name a "
                "file for it."
            )
        key = secrets.token_bytes(KEY_BYTES)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self.file, b64encode(key) + b"\n")
        except OSError as error:
            raise WrongSecretsKey(
                f"The key of the secrets cannot be written to {self.file}: {error.strerror}. Choose another file."
            ) from error
        return key

    @property
    def shown(self) -> str:
        """Name of the place, for messages."""
        if self.environment.get(KEY_VARIABLE, "").strip() or self.file is None:
            return f"the environment variable {KEY_VARIABLE}"
        return f"the file {self.file}"

    def __repr__(self) -> str:
        return f"KeySource({self.shown})"


def _decoded(said: str, where: str) -> bytes:
    said = said.strip()
    try:
        if len(said) == 2 * KEY_BYTES:
            key = bytes.fromhex(said)
        else:
            padded = said.rstrip("=") + "=" * (-len(said.rstrip("=")) % 4)
            key = b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise WrongSecretsKey(f"{where} must contain 32 bytes as 64 hex digits or as base64, and does not.")
    return key


def check_value(cipher: Cipher) -> bytes:
    """Return the value that is stored to recognize the key."""
    return cipher.seal(_CHECK, "the key")


def is_right(cipher: Cipher, stored: bytes) -> bool:
    """Whether a check value was made with this key."""
    try:
        return cipher.unseal(stored, "the key") == _CHECK
    except StoreDamaged:
        return False
