"""Explains why the connection to a scheduler fails because of TLS. gRPC only reports that the server is unavailable."""

import socket
import ssl
from pathlib import Path

from gpuyard.live.agent.settings import AgentTlsSection
from gpuyard.live.wire.tls import speaks_tls

LOOK_SECONDS = 1.0
OTHER_NAME = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name or address."""
EXPIRED, NOT_YET_VALID = 10, 9


def what_is_wrong(tls: AgentTlsSection, address: str) -> str:
    """Return what to change after a connection to an address failed; empty if the cause is not TLS."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not tls.ca:
        if not speaks_tls(host, int(port), LOOK_SECONDS):
            return ""
        return (
            f"The scheduler at {address} uses TLS and this agent does not. Set tls.ca to the file of "
            "the authority that signed its certificate (or to the certificate itself)."
        )
    try:
        return _try(tls, host, int(port), address)
    except (OSError, ValueError):  # nothing listens there, or a file is unreadable: reported elsewhere
        return ""


def _try(tls: AgentTlsSection, host: str, port: int, address: str) -> str:
    context = ssl.create_default_context(cafile=tls.ca)
    context.set_alpn_protocols(["h2"])
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    with socket.create_connection((host, port), LOOK_SECONDS) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=host) as secret:
                return _wants_certificate(secret, tls, address)
        except ssl.SSLCertVerificationError as error:
            return _not_trusted(error, tls, host, address)
        except (ssl.SSLError, ConnectionError) as error:
            if "ALERT" in str(error).upper():
                return f"The scheduler at {address} aborted the TLS handshake ({_reason(error)})."
            return (
                f"The process that listens at {address} does not use TLS, but this agent has tls.ca. "
                "Set server.tls.cert and server.tls.key in the settings of the scheduler, or remove "
                "tls.ca here (and set scheduler.plain: true for an address beyond loopback). Also "
                "check the port: the default is 9090."
            )


def _wants_certificate(connection: ssl.SSLSocket, tls: AgentTlsSection, address: str) -> str:
    """Return why the server rejects the client's certificate; empty if it does not.

    With TLS 1.3 it does so only after the handshake. A server that accepts the certificate sends first.
    """
    connection.settimeout(LOOK_SECONDS)
    try:
        accepted = bool(connection.recv(1))
    except TimeoutError:
        accepted = True
    except (ssl.SSLError, ConnectionError):
        accepted = False
    if accepted:
        return ""
    if not tls.cert:
        return (
            f"The scheduler at {address} closes the connection after the TLS handshake. If its "
            "server.tls.client_ca is set, it requires a certificate of agents: set tls.cert and "
            "tls.key."
        )
    return (
        f"The scheduler at {address} does not accept this agent's certificate, tls.cert ({Path(tls.cert).name}). It must be "
        "signed by the authority in the scheduler's server.tls.client_ca."
    )


def _not_trusted(error: ssl.SSLCertVerificationError, tls: AgentTlsSection, host: str, address: str) -> str:
    if error.verify_code in OTHER_NAME:
        return (
            f"The certificate of the scheduler at {address} is for another host name than {host}. Use "
            "a name of the certificate in scheduler.master_address, or create a certificate whose "
            "subjectAltName contains this one."
        )
    if error.verify_code in {EXPIRED, NOT_YET_VALID}:
        return (
            f"The certificate of the scheduler at {address} is not valid now ({error.verify_message}). Renew it there, or "
            "check the clocks of both machines."
        )
    return (
        f"The certificate of the scheduler at {address} is not signed by the authority in tls.ca, {tls.ca} "
        f"({error.verify_message}). Set tls.ca to the file of the authority that signed it."
    )


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", "") or error.strerror or error).replace("_", " ").lower()
