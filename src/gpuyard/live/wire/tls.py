"""Whether somebody speaks TLS, for sentences about connections that fail. Nothing is said to the other side but a hello."""

import socket


def speaks_tls(host: str, port: int, seconds: float) -> bool:
    """Whether a TLS handshake with this address succeeds, whoever it is."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), seconds) as line, context.wrap_socket(line):
            return True
    except (OSError, ValueError):
        return False
