"""Adds to the build of pyproject.toml one optional step: the C++ kernels, where a compiler exists.

Without one the package installs just the same, and looks again on first use. The library knows
neither Python nor torch, so a wheel with it serves every Python of its platform; a wheel without it
(no compiler, or SACCADE_NATIVE=0) serves every platform.
"""

import importlib.util
import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

HOME = Path(__file__).parent / "saccade" / "ops" / "native"
spec = importlib.util.spec_from_file_location("kernel_build", HOME / "build.py")
kernel_build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel_build)


class BuildKernels(build_ext):
    """A plain shared library instead of a Python module: it serves every version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_name(kernel_build.NAME))

    def build_extension(self, ext: Extension) -> None:
        try:
            kernel_build.compile_to(Path(self.get_ext_fullpath(ext.name)).absolute())
        except kernel_build.NoCompilerError as error:
            raise CompileError(str(error)) from None


class Wheel(bdist_wheel):
    """Tagged by what is inside: py3-none-PLATFORM with the kernels, py3-none-any without."""

    def get_tag(self) -> tuple[str, str, str]:
        platform = super().get_tag()[2]
        inside = [*Path(self.bdist_dir).rglob(kernel_build.NAME)] if self.bdist_dir else []
        return "py3", "none", platform if inside else "any"


def can_compile() -> bool:
    if os.environ.get("SACCADE_NATIVE", "").strip().lower() in ("0", "off", "no", "false"):
        return False
    try:
        return bool(kernel_build.compiler())
    except kernel_build.NoCompilerError:
        return False


sources = [str(path.relative_to(Path(__file__).parent)) for path in HOME.glob("src/*.cpp")]
kernels = Extension("saccade.ops.native.kernels", sources, optional=True)
setup(
    ext_modules=[kernels] if can_compile() else [],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
)
