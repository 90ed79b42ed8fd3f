"""Carry out a Containerfile without a container engine: its steps run by chroot in folders, as root.

Only the instructions and forms that edgedec's own files use are known; any other is an error, so that no step is left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Image", "Step", "build", "contained", "declare", "parse", "properties", "sources", "stages"]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Step:
    """An instruction: its name, its flags, and the rest of its line."""

    name: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """The words: of a JSON array, if there is one, otherwise those of a shell."""
        if self.text.startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return shlex.split(self.text)


@dataclass
class Image:
    """The result of a stage.

    Members:
        root: its folder.
        env, user, folder: environment, user and working folder of its processes.
        entrypoint, command, health: words of its commands.
        volumes: folders with content from outside.
        stop: signal that ends it.
        ports: numbers of the ports on which it listens.
    """

    root: Path | None = None
    env: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    stop: str = "SIGTERM"
    ports: list[str] = field(default_factory=list)


def parse(text: str) -> list[Step]:
    """Return the instructions of a file."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    steps = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        flags = {}
        while match := re.match(r"\s*--([a-z-]+)=(\S+)\s+", rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        steps.append(Step(name, flags, rest.strip()))
    return steps


def stages(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the instructions of each stage; the first of each is ``FROM``."""
    assert steps[0].name == "FROM"
    parts: list[list[Step]] = []
    for step in steps:
        if step.name == "FROM":
            parts.append([])
        parts[-1].append(step)
    return parts


def properties(steps: Sequence[Step]) -> Image:
    """Return what the last stage declares, without carrying anything out."""
    image = Image()
    for step in stages(steps)[-1]:
        if step.name not in ("FROM", "RUN", "COPY"):
            declare(image, step)
    return image


def declare(image: Image, step: Step) -> None:
    """Take a property of an image from an instruction that changes no file."""
    assert step.name == "HEALTHCHECK" or not step.flags, step
    match step.name:
        case "ENV":
            image.env |= dict(word.split("=", 1) for word in step.words)
        case "USER":
            image.user = step.text
        case "WORKDIR":
            image.folder = step.text
        case "ENTRYPOINT":
            image.entrypoint, image.command = step.words, []
        case "CMD":
            image.command = step.words
        case "HEALTHCHECK":
            assert step.text.startswith("CMD ["), step
            image.health = [str(word) for word in json.loads(step.text.removeprefix("CMD "))]
        case "VOLUME":
            image.volumes += step.words
        case "EXPOSE":
            image.ports += step.words
        case "STOPSIGNAL":
            image.stop = step.text
        case _:
            raise AssertionError(f"an unknown instruction: {step}")


def build(steps: Sequence[Step], base: Path, context: Path, work: Path, *, env: Mapping[str, str]) -> Image:
    """Carry out all stages, each in a copy of ``base``, and return the last image.

    Parameters:
        base: root of the system that the stages begin with.
        context: folder that files are copied from.
        work: folder for the roots.
        env: further variables of the steps, which say where packages are; they do not become a part of the image.
    """
    made: dict[str, Image] = {}
    image = Image()
    for number, part in enumerate(stages(steps)):
        first, *rest = part
        name = first.words[2] if len(first.words) == 3 else str(number)
        image = made[name] = Image(root=work / name)
        assert image.root is not None
        subprocess.run(["cp", "-a", "--reflink=auto", f"{base}/.", image.root], check=True)
        shutil.copy("/etc/resolv.conf", image.root / "etc/resolv.conf")
        for step in rest:
            if step.name == "RUN":
                assert not step.flags, step
                subprocess.run(contained(image, ["/bin/sh", "-c", step.text], env=env), check=True)
            elif step.name == "COPY":
                _copy(step, image, made, context)
            else:
                declare(image, step)
                (image.root / image.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return image


def _copy(step: Step, image: Image, made: Mapping[str, Image], context: Path) -> None:
    assert step.flags.keys() <= {"from"}, step
    assert image.root is not None
    source = context if "from" not in step.flags else made[step.flags["from"]].root
    assert source is not None
    *names, target = step.words
    place = image.root / os.path.join(image.folder, target).lstrip("/")
    for name in names:
        path = source / name.lstrip("/")
        if path.is_dir():
            shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True)
        else:
            (place if target.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


def contained(image: Image, words: Sequence[str], *, env: Mapping[str, str], network: bool = True) -> list[str]:
    """Return a command that runs ``words`` in an image, with process numbers and mounts of its own.

    Parameters:
        env: further variables.
        network: False gives it a network of its own, in which nothing but itself can be reached.
    """
    assert image.root is not None
    variables = {"PATH": _PATH, "HOME": "/", "LANG": "C.UTF-8", **image.env, **env}
    user = image.user if ":" in image.user else f"{image.user}:{image.user}"
    pairs = [f"{name}={value}" for name, value in variables.items()]
    inner = ["chroot", f"--userspec={user}", str(image.root), "env", "-i", "-C", image.folder, *pairs, *words]
    script = f"mount -t proc proc {shlex.quote(str(image.root))}/proc && "
    script += "" if network else "ip link set lo up && "
    outer = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
    return [*outer, "sh", "-c", f'{script}exec "$@"', "sh", *inner]


def sources(steps: Sequence[Step]) -> Iterator[str]:
    """Yield what is copied from the context."""
    for step in steps:
        if step.name in ("COPY", "ADD") and "from" not in step.flags:
            yield from step.words[:-1]
