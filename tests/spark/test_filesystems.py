"""Where paths lead: local ones, file: URIs, and file systems of pyarrow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from replay.spark.base import filesystems
from replay.spark.base.filesystems import ArrowFiles, open_place
from replay.spark.base.options import BadOption
from tests.spark.reading import made, plan_of, read, txns


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stopped node; nobody changes it."""
    return made(tmp_path_factory.mktemp("a b") / "ünï").directory


def test_file_uri_is_the_local_path(directory: str) -> None:
    """Escaped or not, with or without an authority."""
    rows = read(directory)
    assert read(Path(directory).as_uri()) == rows
    assert read("file:" + directory) == rows
    assert open_place("file://localhost/x") == (open_place("/x")[0], "/x")


def test_other_machine_is_refused() -> None:
    """file://host/path names a machine, not a folder called host."""
    with pytest.raises(BadOption, match="another machine"):
        open_place("file://elsewhere/data")


def test_unknown_scheme_is_refused() -> None:
    """What no file system is known for is named, not taken for a folder."""
    with pytest.raises(BadOption, match="gopher://x/y cannot be opened"):
        open_place("gopher://x/y")


def test_hdfs_without_its_libraries_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, the same one each time, that names the library; not the places where it was looked for."""
    monkeypatch.setattr(filesystems, "_have_libhdfs", lambda: False)
    for uri in ("hdfs://name:8020/logs/node1", "viewfs://cluster/logs"):
        for _ in range(2):
            with pytest.raises(BadOption, match=rf"^{uri} cannot be opened: libhdfs.so .* HADOOP_HOME.*CLASSPATH") as refused:
                open_place(uri)
            assert "\n" not in str(refused.value)


def test_hadoop_name_of_a_store_is_told_the_right_one() -> None:
    """s3a:// is what Spark's own readers want."""
    with pytest.raises(BadOption, match=r"s3a://bucket/node cannot be opened: .*; write s3://$"):
        open_place("s3a://bucket/node")


def test_log_behind_a_pyarrow_file_system_gives_the_same_rows(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store or HDFS is read through the same code: only opening, listing and reading differ."""
    rows = read(directory)
    parent, name = os.path.split(directory)
    store = fs.SubTreeFileSystem(parent, fs.LocalFileSystem())
    monkeypatch.setattr(filesystems, "filesystem_of", lambda uri: (store, uri.removeprefix("store://")))
    assert read(f"store://{name}") == rows
    assert txns(read(f"store://{name}/", partitions="0")) == txns([row for row in rows if row[0] == 0])
    with pytest.raises(BadOption, match="does not exist"):
        plan_of("store://other")


def test_log_in_memory_is_a_log(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No path of this machine leaks into the reading: a file system that has none serves as well."""
    memory = fs._MockFileSystem()
    for path in Path(directory).rglob("*"):
        inner = "bucket/node/" + str(path.relative_to(directory))
        if path.is_dir():
            memory.create_dir(inner, recursive=True)
        else:
            memory.create_dir(os.path.dirname(inner), recursive=True)
            with memory.open_output_stream(inner) as stream:
                stream.write(path.read_bytes())
    monkeypatch.setattr(filesystems, "filesystem_of", lambda uri: (memory, uri.removeprefix("mock://")))
    assert read("mock://bucket/node") == read(directory)


def test_nothing_is_ever_written_there() -> None:
    """Whatever changes a file system is refused before it is asked."""
    files = ArrowFiles(fs.LocalFileSystem())
    for act in (files.mkdir, files.unlink, files.fsync_dir, files.lock, files.open, lambda p: files.rename(p, p)):
        with pytest.raises(OSError, match="never writes"):
            act("/tmp/x")
