"""Every member as a stranger gets it: built, checked, installed alone into a fresh environment, and used from there."""

import email
import itertools
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from datetime import date

import common
import pytest

pytestmark = pytest.mark.slow

#: A README's example runs within this on a busy machine; the first call of some compiles.
EXAMPLE_SECONDS = 240


def run(*command, cwd, env, timeout=900):
    """Run and return; a failure shows the last lines of what the command said."""
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-4000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def dist(root, uv, clean_env, tmp_path_factory):
    """Source distributions of all members, and the wheels built from them (not from the checkout)."""
    folder = tmp_path_factory.mktemp("dist")
    run(uv, "build", "-q", "--all-packages", "--out-dir", folder, cwd=root, env=clean_env)
    return folder


def wheel_of(dist, member):
    name = "neurips26_" + member.removeprefix("packages/").replace("-", "_")
    (path,) = dist.glob(f"{name}-*.whl")
    return path


def test_every_member_is_built_twice_and_passes_twine(dist, root, clean_env):
    members = ["shared", *common.slugs()]
    assert len(list(dist.glob("*.whl"))) == len(list(dist.glob("*.tar.gz"))) == len(members)
    files = sorted(p for p in dist.iterdir() if p.suffix in (".whl", ".gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=root, env=clean_env)


def test_wheel_holds_its_own_portion_and_nothing_else(dist, member, root):
    name = "shared" if member == "shared" else member.removeprefix("packages/").replace("-", "_")
    with zipfile.ZipFile(wheel_of(dist, member)) as archive:
        names = archive.namelist()
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(metadata))
    top = {n.split("/")[0] for n in names if ".dist-info" not in n}
    assert top == {"neurips26"}
    assert {n.split("/")[1] for n in names if n.startswith("neurips26/") and len(n) > 10} == {name}
    assert f"neurips26/{name}/py.typed" in names
    if member != "shared":
        assert f"neurips26/{name}/paper.toml" in names
    assert not any("/tests/" in n or n.endswith((".pyc", ".so")) for n in names)
    # Files of the checkout that modules read (templates, schemas, parameters) are in the wheel too.
    source = root / member / "src" / "neurips26" / name
    checked_in = subprocess.run(["git", "ls-files", "."], cwd=source, capture_output=True, text=True, check=True).stdout
    assert {f"neurips26/{name}/{line}" for line in checked_in.splitlines()} <= set(names)
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields["Requires-Python"]


def asked_for(readme: str, slug: str) -> str:
    """What the README tells to install: the distribution with the extras that its example needs."""
    found = re.search(rf"pip install [\"']?(neurips26-{slug}(?:\[[a-z0-9,-]+\])?)(?![a-z0-9-])", readme)
    return found[1] if found else f"neurips26-{slug}"


@pytest.fixture
def fresh(tmp_path, uv, clean_env):
    """An empty environment, removed afterwards; hard links to the cache make it cheap."""
    folder = tmp_path / "venv"
    run(uv, "venv", "-q", "--python", sys.executable, folder, cwd=tmp_path, env=clean_env)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def locked(uv, root, env, package, tmp_path):
    """The versions of the lock as constraints: a wheel is tried with what was tested."""
    text = run(
        uv, "export", "-q", "--frozen", "--package", package, "--all-extras", "--no-dev", "--no-hashes",
        "--no-annotate", "--no-header", "--no-emit-workspace", cwd=root, env=env,
    )  # fmt: skip
    path = tmp_path / "constraints.txt"
    path.write_text(text)
    return path


def test_wheel_alone_runs_its_readme_and_lists_itself(dist, slug, root, uv, clean_env, tmp_path, fresh):
    readme = (root / "packages" / slug / "README.md").read_text("utf-8")
    wanted = asked_for(readme, slug)
    constraints = locked(uv, root, clean_env, f"neurips26-{slug}", tmp_path)
    python = fresh / "bin" / "python"
    run(
        uv, "pip", "install", "-q", "--no-sources", "--find-links", dist, "-c", constraints, "--python", python, wanted,
        cwd=tmp_path, env=clean_env,
    )  # fmt: skip
    listed = run(fresh / "bin" / "neurips26", "list", cwd=tmp_path, env=clean_env | {"COLUMNS": "200"})
    assert slug in listed
    others = [other for other in common.slugs() if other != slug]
    assert not [other for other in others if re.search(rf"^{other}\s", listed, re.M)], "it brought another paper along"
    code = re.search(r"^```python\n(.*?)^```", readme, re.M | re.S)
    assert code, "the README has no ```python block"
    env = clean_env | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    run(python, "-c", textwrap.dedent(code[1]), cwd=tmp_path, env=env, timeout=EXAMPLE_SECONDS)


def light(root, uv, env):
    """Members whose dependencies pip can bring in a minute: without torch or JAX."""
    found = []
    for slug in common.slugs():
        text = run(
            uv,
            "export",
            "-q",
            "--frozen",
            "--package",
            f"neurips26-{slug}",
            "--no-dev",
            "--no-hashes",
            cwd=root,
            env=env,
        )
        if not re.search(r"^(torch|jax)==", text, re.M):
            found.append(slug)
    return found


def test_plain_pip_installs_shared_and_a_rotating_package(dist, root, uv, clean_env, tmp_path):
    candidates = light(root, uv, clean_env)
    # Another one each day, so that all get their turn.
    chosen = [candidates[date.today().toordinal() % len(candidates)]] if candidates else []
    folder = tmp_path / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=tmp_path, env=clean_env)
    wanted = ["neurips26-shared", *(f"neurips26-{slug}" for slug in chosen)]
    try:
        command = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--find-links", dist, *wanted]
        run(*command, cwd=tmp_path, env=clean_env)
        listed = run(folder / "bin" / "neurips26", "list", cwd=tmp_path, env=clean_env | {"COLUMNS": "200"})
        for slug in chosen:
            assert slug in listed
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- what an isolated run must see ---


@pytest.fixture
def copy(root, tmp_path, uv, clean_env):
    """A small workspace of its own: the root, shared, and one package laid out by ``make new``."""
    import new

    target = tmp_path / "house"
    (target / "packages").mkdir(parents=True)
    for name in ("pyproject.toml", "uv.lock", "README.md"):
        shutil.copy(root / name, target / name)
    ignore = shutil.ignore_patterns("__pycache__", ".venv", "build")
    shutil.copytree(root / "shared", target / "shared", ignore=ignore)
    new.lay_out("planted", target)
    run(uv, "lock", "-q", cwd=target, env=clean_env)
    return target


def isolated(uv, copy, env, *arguments):
    command = [uv, "run", "-q", "--frozen", "--isolated", "--package", "neurips26-planted", "--all-extras"]
    command += ["--group", "dev", "python", *arguments]
    return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=600, check=False)


def test_new_package_is_green_and_an_undeclared_import_is_red(copy, uv, clean_env, root):
    tests = ("-m", "pytest", "packages/planted/tests")
    done = isolated(uv, copy, clean_env, *tests)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    done = isolated(uv, copy, clean_env, "-m", "neurips26.shared.cli", "run", "planted", "--out", "build")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "holds" in done.stdout
    table = (copy / "README.md").read_text("utf-8").split("## Use one package")[0]
    assert table.count("| [planted](packages/planted) |") == 1

    # Something the house has and this package does not declare: another distribution of the dev machine.
    module = copy / "packages" / "planted" / "src" / "neurips26" / "planted" / "shrinkage.py"
    module.write_text(module.read_text().replace("import numpy as np\n", "import numpy as np\nimport selenium\n", 1))
    __import__("selenium")  # here it is there: an import in the common environment would pass
    done = isolated(uv, copy, clean_env, *tests)
    assert done.returncode != 0
    assert "No module named 'selenium'" in done.stdout


def test_new_package_passes_the_static_checks(copy, root, clean_env):
    ruff = shutil.which("ruff", path=os.pathsep.join([str(root / ".venv" / "bin"), clean_env["PATH"]]))
    if ruff is None:
        pytest.skip("ruff comes with the check group")
    run(ruff, "check", "packages", cwd=copy, env=clean_env)
    run(ruff, "format", "--check", "packages", cwd=copy, env=clean_env)


def test_new_refuses_what_is_no_slug(copy):
    import new

    for slug in ("", "Planted", "a_b", "-a", "../a", "a b", "class", "shared", "demo", "run", "planted"):
        with pytest.raises(ValueError, match="SLUG: expected"):
            new.lay_out(slug, copy)
    texts = itertools.chain.from_iterable(new.files(s, "1.2").values() for s in ("a-b", "zeta"))
    assert not [t for t in texts if "{slug}" in t or "{name}" in t or "{version}" in t]
