from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.diagram import svg

PICTURE = Path(__file__).parents[3] / "docs" / "data-path.svg"


def test_the_picture_in_the_documentation_is_that_of_the_configuration() -> None:
    """Write it again if this fails: python -m edgedec.hw.plan.diagram > docs/data-path.svg."""
    assert PICTURE.read_text("utf-8") == svg(AcceleratorConfig())


def test_sizes_in_the_picture_follow_the_configuration() -> None:
    small = svg(AcceleratorConfig(beat_bytes=8, ports=1, slots=3))
    texts = [element.text for element in ElementTree.fromstring(small).iter() if element.tag.endswith("text")]
    assert "8 x 3 products" in texts
    assert "1 AXI read ports" in texts
