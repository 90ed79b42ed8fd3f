from __future__ import annotations

from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.disassembler import as_dict
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.instructions import Opcode
from tests.reference.integer_profile.models import tiny
