"""Start ``edgedec serve`` with the options of llama.cpp's ``llama-server``, for llama.cpp's own tests of its server.

The tests name small models of a hub. Those that only need a text get the embedded model instead, with the chat template
``chatml``, which llama-server takes for these models because they have none. An option without a counterpart is ignored if
most tests do not depend on it, and is refused otherwise, so that a test that needs it fails.

    python -m tests.peers.llama_server --port 8080 --hf-repo ggml-org/test-model-stories260K --ctx-size 512 --parallel 2
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from edgedec.errors import UsageError

__all__ = ["serve_arguments"]

CONTEXT = 1024  # tokens; the limit of the embedded model
# The embedded model ends its stories, and the models that it stands in for go on; so its end token is forbidden.
ENDLESS = ("--logit-bias", "1-inf")
# Models of a hub that the embedded one stands in for; None is a server that would load models on request.
_REPLACED = ("ggml-org/test-model-stories260K", "ggml-org/stories15M_MOE", None)
# Options with the same meaning here, with their name here.
_SAME = {
    "--host": "--host",
    "--port": "--port",
    "--threads": "--threads",
    "--api-key": "--api-key",
    "--alias": "--alias",
    "--sleep-idle-seconds": "--idle-unload",
    "--spec-draft-n-max": "--draft-max",
    "--temp": "--temp",
    "--seed": "--seed",
    "--n-predict": "--n-predict",
    "--reasoning": "--reasoning",
    "--reasoning-format": "--reasoning-format",
    "--chat-template-file": "--chat-template-file",
}
# Flags with the same meaning here, with their name here.
_SAME_FLAGS = {"--no-slots": "--no-slots", "--no-ui": "--no-ui"}
# Options that are read below, with a value.
_READ = (
    *("--hf-repo", "--ctx-size", "--parallel", "--cors-origins", "--spec-type", "--model-draft"),
    "--chat-template",
)
# Options without effect: with a value, and without one. Sizes of batches are the server's own.
_IGNORED = (
    *("--hf-file", "--batch-size", "--ubatch-size", "--n-gpu-layers", "-fa"),
    *("--spec-draft-n-min", "--cache-ram"),
)
_IGNORED_FLAGS = ("--offline", "--cont-batching", "--slots", "--verbose", "--jinja", "--no-jinja", "--no-mmproj")
_FLAGS = (*_IGNORED_FLAGS, *_SAME_FLAGS, "--kv-unified", "--metrics", "--backend_sampling")


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value; a flag has an empty one."""
    words = iter(arguments)
    for name in words:
        if name in _FLAGS:
            yield name, ""
        elif name in (*_SAME, *_READ, *_IGNORED):
            value = next(words, None)
            if value is None:
                raise UsageError(f"llama-server's {name} needs a value")
            yield name, value
        else:
            raise UsageError(f"llama-server's option {name} has no counterpart in edgedec")


def serve_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of ``edgedec`` for those of ``llama-server``.

    llama.cpp divides its context among the texts unless they share one cache; edgedec's ``--ctx-size`` is that of each text.

    Raises:
        UsageError: an option has no counterpart, or the model is none that the embedded one can stand in for.
    """
    options = dict(_pairs(arguments))
    if (model := options.get("--hf-repo")) not in _REPLACED:
        raise UsageError(f"the embedded model cannot stand in for {model}")
    result = ["serve", "--model", "demo", "--kv-bits", "16", *ENDLESS]
    for name, own in _SAME.items():
        if name in options:
            result += [own, options[name]]
    result += [own for name, own in _SAME_FLAGS.items() if name in options]
    if "--metrics" not in options:  # llama-server's are off by default
        result.append("--no-metrics")
    if "--chat-template-file" not in options:
        result += ["--chat-template", options.get("--chat-template", "chatml")]
    for origin in filter(None, options.get("--cors-origins", "").split(",")):
        result += ["--cors-origin", origin]
    texts = int(options.get("--parallel", "1"))
    context = int(options.get("--ctx-size", CONTEXT))
    if "--kv-unified" not in options:
        context //= texts
    result += ["--parallel", str(texts), "--ctx-size", str(min(context, CONTEXT))]
    kind = options.get("--spec-type")
    if kind is None:
        return result
    if kind != "draft-simple" or "--model-draft" not in options:
        raise UsageError(f"llama-server's drafter {kind} has no counterpart here; the draft model has")
    return [*result, "--spec-type", "model", "--model-draft", "demo-draft"]


def main() -> None:
    """Replace this process by ``edgedec serve``."""
    try:
        arguments = serve_arguments(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"llama_server: {error}")
    os.execv(sys.executable, [sys.executable, "-m", "edgedec", *arguments])


if __name__ == "__main__":
    main()
