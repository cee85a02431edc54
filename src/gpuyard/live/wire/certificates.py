"""Checks the files named in `tls` settings, before a port is opened or a connection is made.

gRPC does not say what is wrong with a file: a server only fails to bind, and a client only fails to connect.
"""

from collections.abc import Iterator
from pathlib import Path

from gpuyard.live.wire.config import Complaint

CERTIFICATE = "a certificate in PEM form (it begins with -----BEGIN CERTIFICATE-----)"
KEY = "a private key in PEM form without a passphrase (it begins with -----BEGIN PRIVATE KEY----- or similar)"


class _HasPassphrase(Exception):
    """OpenSSL asks for the passphrase of a key."""


def wrong_authority(setting: str, path: str) -> Iterator[Complaint]:
    """Yield what is wrong with a file of trusted certificates; nothing if none is named."""
    import ssl

    if not path:
        return
    if sentence := _unreadable(setting, path, CERTIFICATE):
        yield setting, sentence
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        yield setting, _not_that(setting, path, CERTIFICATE, error)


def wrong_pair(cert_setting: str, cert: str, key_setting: str, key: str) -> Iterator[Complaint]:
    """Yield what is wrong with a certificate and its key; nothing if one of them is not named."""
    import ssl

    if not cert or not key:
        return
    faults = list(wrong_authority(cert_setting, cert))
    if sentence := _unreadable(key_setting, key, KEY):
        faults.append((key_setting, sentence))
    if faults:
        yield from faults
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_refuse_passphrase)
    except _HasPassphrase:
        yield (
            key_setting,
            (
                f"{key_setting} ({_shown(key)}) has a passphrase. Use a key without one: openssl pkey -in "
                "FILE -out FILE."
            ),
        )
    except (OSError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            sentence = (
                f"{key_setting} ({_shown(key)}) is not the key of the certificate in {cert_setting} "
                f"({_shown(cert)}). Use the key that belongs to the certificate."
            )
            yield key_setting, sentence
        elif _is_weak(error):
            sentence = (
                f"{cert_setting} ({_shown(cert)}) is not accepted{_reason(error)}. Create a certificate "
                "with a stronger key."
            )
            yield cert_setting, sentence
        else:
            yield key_setting, _not_that(key_setting, key, KEY, error)


def _refuse_passphrase() -> str:
    raise _HasPassphrase


def _unreadable(setting: str, path: str, what: str) -> str:
    """Return why a file cannot be read; empty if it can."""
    try:
        if not Path(path).is_file():
            state = "is not a file" if Path(path).exists() else "does not exist"
            return f"{setting}: {_shown(path)} {state}. Set it to the path of {what}."
        with Path(path).open("rb"):
            return ""
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"{setting}: {_shown(path)} cannot be read: {why}. Make it readable for the user who runs this process."


def _not_that(setting: str, path: str, what: str, error: Exception) -> str:
    return f"{setting}: {_shown(path)} is not usable{_reason(error)}. Set it to the path of {what}."


def _is_weak(error: Exception) -> bool:
    reason = str(getattr(error, "reason", "") or "")
    return reason.endswith(("KEY_TOO_SMALL", "MD_TOO_WEAK"))


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return f" ({reason.replace('_', ' ').lower()})" if isinstance(reason, str) else ""


def _shown(path: str) -> Path:
    """Return the absolute path, because a relative one depends on the folder in which the process is started."""
    return Path(path).absolute()
