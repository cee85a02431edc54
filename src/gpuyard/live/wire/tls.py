"""Checks whether a server speaks TLS, to explain failed connections. Only a handshake is sent."""

import socket


def speaks_tls(host: str, port: int, seconds: float) -> bool:
    """Return whether a TLS handshake with this address succeeds, with any certificate."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _name, address in addresses:
        # Wrapped before it connects: Python leaks a connected socket that is reset while it is being wrapped.
        with context.wrap_socket(socket.socket(family, kind, protocol)) as connection:
            connection.settimeout(seconds)
            try:
                connection.connect(address)
            except (OSError, ValueError):
                continue
            return True
    return False
