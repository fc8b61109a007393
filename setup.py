"""Adds to the build of pyproject.toml one optional step: the C++ kernels, where a compiler exists.

Without one the package installs just the same, and looks again on first use.
"""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup
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


sources = [str(path.relative_to(Path(__file__).parent)) for path in HOME.glob("src/*.cpp")]
setup(
    ext_modules=[Extension("saccade.ops.native.kernels", sources, optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
