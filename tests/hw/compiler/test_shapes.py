"""Test the programs of shapes: their weights have bytes only where an image is asked for."""

from __future__ import annotations

from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.shapes import shape_graph, shape_model, shape_program
from tests.support.make_tiny import CONFIG


def test_an_image_is_built_on_demand() -> None:
    graph = shape_graph(CONFIG)
    config = config_for(shape_model(graph))
    bare, whole = (shape_program(graph, config, image=image) for image in (False, True))
    assert (bare.image.size, whole.image.size) == (0, whole.sizes["image"])
    assert bare.instructions == whole.instructions
