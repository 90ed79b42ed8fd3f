"""Test into which pieces bursts can be cut; test_controller.py cuts them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from edgedec.hw.system.sdram import segments
