"""Maps the top-level folders onto the edgedec namespace, so that no generic name reaches site-packages."""

from __future__ import annotations

from setuptools import find_packages, setup

FOLDERS = ("hw", "quantize", "runtime", "boards", "sim")

packages = find_packages(include=["edgedec", "edgedec.*"])
for folder in FOLDERS:
    packages += [f"edgedec.{folder}", *(f"edgedec.{folder}.{name}" for name in find_packages(folder))]

setup(packages=packages, package_dir={f"edgedec.{folder}": folder for folder in FOLDERS})
