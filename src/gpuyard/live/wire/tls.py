"""Checks whether a server speaks TLS, to explain failed connections. Only a handshake is sent."""

import socket


def speaks_tls(host: str, port: int, seconds: float) -> bool:
    """Return whether a TLS handshake with this address succeeds, with any certificate."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), seconds) as connection, context.wrap_socket(connection):
            return True
    except (OSError, ValueError):
        return False
