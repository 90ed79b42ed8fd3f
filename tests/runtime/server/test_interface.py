"""Test every endpoint with the requests that schemathesis makes from the description of the interface.

Install schemathesis anywhere on the PATH; it is not a part of the project's environment. Its seed is fixed, so a failure can
be repeated, and its output names the request.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edgedec import demo
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import serving
from tests.runtime.server.test_streaming import idle, until

KEY = "correct-horse-battery"


@pytest.mark.nightly
@pytest.mark.parametrize(("key", "mode"), [(None, "all"), (KEY, "positive")])
def test_no_request_of_the_interface_is_answered_with_a_server_error(
    key: str | None, mode: str, tmp_path: Path
) -> None:
    program = shutil.which("schemathesis")
    if program is None:
        pytest.skip("there is no schemathesis on the PATH")
    keys = () if key is None else (key,)
    with serving(lambda: Session.open(demo.bundle_path(), ctx_size=256, sequences=3), api_keys=keys) as served:
        command = [program, "run", f"http://127.0.0.1:{served.port}/openapi.json", "--checks", "not_a_server_error"]
        command += ["--seed", "1", "--max-examples", "30", "--mode", mode, "--phases", "coverage,fuzzing"]
        command += ["--continue-on-failure", "--request-timeout", "120"]
        if key is not None:
            command += ["--header", f"Authorization: Bearer {key}"]
        finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=1200, check=False)
        assert finished.returncode == 0, finished.stdout[-4000:]
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        paths = served.client.get("/openapi.json", headers=headers).json()["paths"]
        operations = sum(len(methods) for methods in paths.values())
        assert f"Tested: {operations}\n" in finished.stdout
        until(lambda: idle(served))
