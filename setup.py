"""Maps the top-level folders onto the edgedec namespace, so that no generic name reaches site-packages, and compiles the
CPU kernels and the decoding loop where there is a C++ compiler: libraries with a C interface, so one wheel serves every
Python.
"""

from __future__ import annotations

import logging
import runpy
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDERS = ("hw", "quantize", "runtime", "boards", "sim")
KERNELS = Path(__file__).resolve().parent / "runtime" / "kernels"

packages = find_packages(include=["edgedec", "edgedec.*"])
for folder in FOLDERS:
    packages += [f"edgedec.{folder}", *(f"edgedec.{folder}.{name}" for name in find_packages(folder))]

recipe = runpy.run_path(str(KERNELS / "recipe.py"))
compiler = recipe["find_compiler"]()


# last part of the "extension's" name, by which setuptools asks -> file name, function of the recipe, effect of its absence
LIBRARIES = {
    "kernels_library": (recipe["LIBRARY"], recipe["build"], "its CPU kernels, on the portable graph"),
    "loop_library": (recipe["LOOP_LIBRARY"], recipe["build_loop"], "its compiled loop, with Python's"),
}
EXTENSIONS = ("edgedec.runtime.kernels.kernels_library", "edgedec.runtime.loop.loop_library")


class BuildLibraries(build_ext):  # type: ignore[misc]  # no types in setuptools
    """The "extensions" are plain libraries, under names without a Python version."""

    def get_ext_filename(self, fullname: str) -> str:
        *folders, name = fullname.split(".")
        return str(Path(*folders, LIBRARIES[name][0]))

    def build_extension(self, ext: Extension) -> None:
        _, build, without = LIBRARIES[ext.name.rpartition(".")[2]]
        try:
            said = build(compiler, Path(self.get_ext_fullpath(ext.name)))
        except recipe["KernelBuildError"] as error:  # an extension is optional: setuptools warns and goes on
            raise CompileError(f"{error}\nedgedec works without {without}") from error
        if said:
            logging.getLogger(__name__).warning(said)


class PlatformWheel(bdist_wheel):  # type: ignore[misc]
    """py3-none-PLATFORM: machine code, but none that knows Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


if compiler is None:
    logging.getLogger(__name__).warning(
        "no C++ compiler: edgedec goes without its CPU kernels and its compiled loop; its models need the extra onnx then"
    )

setup(
    packages=packages,
    package_dir={f"edgedec.{folder}": folder for folder in FOLDERS},
    ext_modules=[Extension(name, [], optional=True) for name in EXTENSIONS] if compiler else [],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
)
