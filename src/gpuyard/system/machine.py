"""The identity of the machine, to recognize whether two processes run on the same one."""

import os
from functools import cache
from hashlib import sha256
from pathlib import Path


@cache
def machine() -> str:
    """Return the name of this machine and a part of a hash of its id: containers of one image share the id alone."""
    try:
        unique = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        unique = b""
    return f"{os.uname().nodename}:{sha256(b'gpuyard' + unique).hexdigest()[:12]}"
