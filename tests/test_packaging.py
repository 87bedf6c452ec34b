"""The wheel holds what the checkout holds, under the names that it should."""

import pathlib
import subprocess
import sys
import tomllib
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
PACKAGES = ("art_gym", "art_gym.envs", "art_gym.wrappers", "art_trainer", "art_trainer.recipes")
SOURCES = {name: ROOT / name.split(".")[-1] for name in PACKAGES}


def files_on_disk():
    """Path in the wheel → path in the checkout, of every file of the packages but compiled ones."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(folder)}": path
        for package, folder in SOURCES.items()
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not (package == "art_gym" and path.relative_to(folder).parts[0] in ("envs", "wrappers"))
        and not (package == "art_trainer" and path.relative_to(folder).parts[0] == "recipes")
    }


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    """The names in a wheel built, without the network, from a copy of the checkout's files."""
    copy = tmp_path_factory.mktemp("checkout")
    top = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    for path in [*files_on_disk().values(), *top]:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    options = "--quiet --no-build-isolation --no-deps --no-index".split()
    command = [sys.executable, "-m", "pip", "wheel", *options]
    subprocess.run([*command, "--wheel-dir", out, copy], check=True, capture_output=True)
    [wheel] = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_folder_with_sources_is_a_package_and_listed():
    files = files_on_disk()
    folders = {pathlib.PurePosixPath(name).parent for name in files if name.endswith(".py")}
    assert all(str(folder / "__init__.py") in files for folder in folders)
    assert {".".join(folder.parts) for folder in folders} == set(SETUPTOOLS["packages"])


def test_the_wheel_holds_every_file_and_the_licence_and_no_other_package(wheel_names):
    assert set(files_on_disk()) <= wheel_names
    packages = {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name}
    assert packages == {"art_gym", "art_trainer"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)
    assert (ROOT / "LICENSE").read_text().split()[:3] == ["Apache", "License", "Version"]


def test_the_oldest_versions_that_are_allowed_are_those_that_are_tried():
    """``integrations/oldest`` runs with them; PyTorch is left out, as it is large."""
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {one for extra in ("cli", "train", "serve") for one in extras[extra] if "art-gym[" not in one}
    pins = (ROOT / "integrations/oldest/requirements.txt").read_text().splitlines()
    tried = {line.replace("==", ">=") for line in pins if not line.startswith("#")}
    assert {one for one in wanted if not one.startswith("torch>=")} == tried


@pytest.mark.parametrize("name", ["envs", "wrappers"])
def test_the_short_names_are_refused(name):
    result = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert f"import `art_gym.{name}`" in result.stderr


def test_links_lead_to_the_folders():
    for package, name in (("art_gym", "envs"), ("art_gym", "wrappers"), ("art_trainer", "recipes")):
        assert (ROOT / package / name).resolve() == ROOT / name


def test_scripts_lead_to_functions():
    for target in PROJECT["project"]["scripts"].values():
        module, function = target.split(":")
        code = f"from {module} import {function} as f; assert callable(f)"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_constraints_pin_everything_exactly_and_nothing_with_cuda():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    for pin in pins:
        name, version = pin.split("==")
        assert name == name.strip()
        assert version
        assert "+" not in version
        assert not name.lower().startswith(("nvidia", "cuda", "triton"))
    names = [pin.split("==")[0].lower().replace("_", "-") for pin in pins]
    assert names == sorted(set(names))
    needed = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        needed += [requirement for requirement in extra if not requirement.startswith("art-gym")]
    for requirement in needed:
        assert requirement.split(">")[0].strip().lower() in names


@pytest.mark.parametrize("missing", ["typer", "yaml", "torch"])
def test_without_the_extra_the_trainers_command_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import art_trainer.cli.main"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr == f'art-trainer needs {missing}; run: pip install "art-gym[train]"\n'
