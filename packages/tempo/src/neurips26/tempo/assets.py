"""Robot models without a network: Playground's own MJCF from its installed wheel, visual meshes stripped, and our Go2.

MuJoCo Playground clones mujoco_menagerie with git when an environment is first loaded, only for *visual* meshes.
Masses and inertias are explicit in its XML, hence dropping the `<mesh>` assets and the geoms that show them leaves the
physics as it is (the tests compare trajectories bit for bit where a copy with meshes is at hand).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import mujoco
import numpy as np

from neurips26.shared.arrays import check_choice

from . import go2

__all__ = ["ROBOTS", "TERRAINS", "compile_model", "offline_playground", "playground_assets", "playground_root"]

ROBOTS = ("go1", "go2", "g1")
TERRAINS = ("flat", "rough")
#: Side of the square on which the rough scene's heights are repeated (mirrored), so that no robot walks off the edge in 20 s.
TILES = 3


def playground_root() -> Path:
    """Folder of the locomotion tasks in the installed `playground` wheel, found without importing it."""
    found = importlib.util.find_spec("mujoco_playground")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the robot models come from the wheel 'playground': pip install playground")
    return Path(next(iter(found.submodule_search_locations))) / "_src" / "locomotion"


def playground_assets(robot: str, meshes: str = "strip") -> dict[str, bytes]:
    """What Playground's `get_assets()` returns for go1 or g1, without the menagerie: file name -> bytes.

    Args:
        robot: "go1" or "g1".
        meshes: "strip" removes visual meshes; a folder path takes them from a checkout of mujoco_menagerie.
    """
    check_choice(robot, "robot", ("go1", "g1"))
    folder = playground_root() / robot / "xmls"
    assets = {}
    for path in sorted([*folder.glob("*.xml"), *(folder / "assets").glob("*")]):
        data = path.read_bytes()
        assets[path.name] = strip_meshes(data) if path.suffix == ".xml" and meshes == "strip" else data
    if meshes != "strip":
        source = Path(meshes) / f"unitree_{robot}"
        if not source.is_dir():
            raise FileNotFoundError(
                f"meshes: expected a mujoco_menagerie checkout with {source.name}/, got {meshes}; "
                "clone google-deepmind/mujoco_menagerie, or leave meshes='strip' (same physics, drawn with primitive shapes)"
            )
        for path in sorted([*source.glob("*.xml"), *(source / "assets").glob("*")]):
            assets.setdefault(path.name, path.read_bytes())
    return assets


def strip_meshes(xml: bytes) -> bytes:
    """The MJCF without mesh assets, without geoms that show a mesh, and without image textures."""
    root = ET.fromstring(xml)
    for parent in list(root.iter()):
        for child in list(parent):
            mesh = child.tag == "mesh" or (child.tag == "geom" and (child.get("mesh") or child.get("type") == "mesh"))
            picture = child.tag == "texture" and child.get("file")
            # the default of class "visual" has type mesh and is harmless; geoms that *are* of that class all name a mesh
            if (mesh and parent.tag != "default") or picture:
                parent.remove(child)
            elif (
                child.tag == "material"
                and child.get("texture") == "groundplane"
                and "rough" in (root.get("model") or "")
            ):
                del child.attrib["texture"]
    return ET.tostring(root)


@contextlib.contextmanager
def offline_playground(meshes: str = "strip") -> Iterator[None]:
    """Inside this context `mujoco_playground.registry.load` works for Go1 and G1 without git and without a network."""
    from mujoco_playground._src import mjx_env
    from mujoco_playground._src.locomotion.g1 import base as g1_base
    from mujoco_playground._src.locomotion.go1 import base as go1_base

    saved = mjx_env.ensure_menagerie_exists, go1_base.get_assets, g1_base.get_assets
    read = None
    try:
        mjx_env.ensure_menagerie_exists = lambda: None
        go1_base.get_assets = lambda: playground_assets("go1", meshes)
        g1_base.get_assets = lambda: playground_assets("g1", meshes)
        yield read
    finally:
        mjx_env.ensure_menagerie_exists, go1_base.get_assets, g1_base.get_assets = saved


def compile_model(robot: str, terrain: str = "flat", height: float = 0.05, meshes: str = "strip") -> mujoco.MjModel:
    """The robot on flat ground or on Playground's rocky height field (height scale in metres), with the task's gains
    and time step.

    The rough ground repeats Playground's 20 m x 20 m field mirrored to 60 m, and keeps the friction of the flat task
    so that the shift changes the shape of the ground alone. `meshes` as in `playground_assets`: for pictures only. A
    model is compiled once a process; every call gives a copy of its own.
    """
    return copy.copy(_compiled(robot, terrain, height, meshes))


@functools.lru_cache(maxsize=16)
def _compiled(robot: str, terrain: str, height: float, meshes: str) -> mujoco.MjModel:
    check_choice(robot, "robot", ROBOTS)
    check_choice(terrain, "terrain", TERRAINS)
    if not np.isfinite(height) or height <= 0:
        raise ValueError(f"height: expected a positive height in metres, got {height}")
    if robot == "go2":
        if meshes != "strip":
            raise ValueError(f"meshes: Go2's model is drawn with primitive shapes and takes none, got {meshes!r}")
        spec = mujoco.MjSpec.from_string(go2.mjcf())
    else:
        files = playground_assets(robot, meshes)
        scene = files["scene_mjx_feetonly_flat_terrain.xml"].decode()
        xml = {k: v for k, v in files.items() if k.endswith(".xml")}
        spec = mujoco.MjSpec.from_string(scene, include=xml, assets={k: v for k, v in files.items() if k not in xml})
    if terrain == "rough":
        heights = _rocky_heights()
        n = heights.shape[0]
        field = spec.add_hfield(name="hfield", nrow=n, ncol=n, size=[10.0 * TILES, 10.0 * TILES, height, 1.0])
        field.userdata = heights.ravel()
        floor = spec.geom("floor")
        floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
        floor.hfieldname = "hfield"
        floor.size = [0, 0, 0]
    model = spec.compile()
    if robot in ("go1", "go2"):  # Playground's Go1 base class
        model.opt.timestep = 0.004
        model.opt.ccd_iterations = 20
        model.actuator_gainprm[:, 0] = 35.0
        model.actuator_biasprm[:, 1] = -35.0
        if robot == "go1":
            model.dof_damping[6:] = 0.5
    else:
        model.opt.timestep = 0.002
    return model


def _rocky_heights() -> np.ndarray:
    """Playground's height field in [0, 1], as MuJoCo decodes it, mirrored TILES x TILES times."""
    png = (playground_root() / "go1" / "xmls" / "assets" / "hfield.png").read_bytes()
    xml = "<mujoco><asset><hfield name='h' file='hfield.png' size='1 1 1 1'/></asset></mujoco>"
    model = mujoco.MjModel.from_xml_string(xml, assets={"hfield.png": png})
    one = model.hfield_data.reshape(model.hfield_nrow[0], model.hfield_ncol[0]).astype(np.float32)
    rows = [np.concatenate([one if c % 2 == 0 else one[:, ::-1] for c in range(TILES)], axis=1)]
    rows = [rows[0] if r % 2 == 0 else rows[0][::-1] for r in range(TILES)]
    return np.ascontiguousarray(np.concatenate(rows, axis=0))
