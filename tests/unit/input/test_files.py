"""Files that a user names: only regular ones of a limited size are read; everything else is refused at once."""

import gzip
import os
import socket
from pathlib import Path

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import is_file, open_file, path_of, read_file


def test_a_file_is_read_plain_or_compressed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a", tmp_path / "b"
    plain.write_bytes(b"content")
    packed.write_bytes(gzip.compress(b"content"))
    assert read_file(plain) == read_file(packed) == b"content"
    with open_file(plain) as file:
        assert file.read() == b"content"


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe, line = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(line))
        for path, why in (
            (pipe, "this is a pipe, not a file"),
            (Path("/dev/zero"), "this is a device, not a file"),
            (line, "No such device or address"),
            (tmp_path, "Is a directory"),
            (tmp_path / "none", "No such file or directory"),
        ):
            with pytest.raises(OSError, match=why):
                read_file(path)


def test_a_pipe_that_the_shell_opened_is_read() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"content")
        os.close(writing)
        assert read_file(Path(f"/dev/fd/{reading}")) == b"content"
    finally:
        os.close(reading)


def test_a_file_over_the_limit_is_refused_before_and_after_decompression(tmp_path: Path) -> None:
    large, bomb, sparse = tmp_path / "large", tmp_path / "bomb", tmp_path / "sparse"
    large.write_bytes(b"x" * (1024**2 + 1))
    bomb.write_bytes(gzip.compress(bytes(50 * 1024**2)))
    with sparse.open("wb") as file:
        file.truncate(1024**4)
    for path in (large, bomb, sparse):
        with pytest.raises(OSError, match="it is larger than 1 MiB"):
            read_file(path, largest=1024**2)


def test_a_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"content" * 1000)[:-10])
    with pytest.raises(OSError, match="the compressed file is cut off or damaged"):
        read_file(path)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "file is null; it must be the path of a file."),
        (5, "file is 5; it must be the path of a file."),
        (b"a", "file is a bytes; it must be the path of a file."),
        ("a\0b", "file contains a NUL character; remove it."),
        ("f" + ".a" * 5000, f'file is "f{".a" * 29}.…"; it must be the path of a file.'),
    ],
)
def test_what_can_not_be_a_path_is_refused_in_one_sentence(value: object, sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        path_of("file", value)
    assert str(error.value) == sentence


def test_a_name_that_is_too_long_for_a_file_is_no_file(tmp_path: Path) -> None:
    assert not is_file(tmp_path / ("a" * 300))
