"""shardproof-light, built where ./shardproof builds it, so that a second call compiles what has changed."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build_light():
    build = ROOT / "build/light"
    env = os.environ | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_SLOPPINESS": "pch_defines,time_macros"}
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    for command in (["cmake", "--preset", "light", *launcher], ["ninja", "-C", build]):
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=env, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return build / "shardproof-light"


if __name__ == "__main__":
    build_light()
